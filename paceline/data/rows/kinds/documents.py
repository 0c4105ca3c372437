"""Documents: one conversation or text per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.data.rows.formats import Example, Shape, detect, normalise
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.values import Row


class Documents(RowKind):
    """One document per row."""

    stored_name = "documents"
    words = "documents"
    conversations = frozenset({"messages", "sharegpt"})

    def detect(
        self, rows: Sequence[Row], *, where: str, requested: str, mapping: Mapping[str, str] | None
    ) -> Shape:
        return detect(rows, where=where, requested=requested, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return (normalise(row, shape),)


DOCUMENTS = Documents()
