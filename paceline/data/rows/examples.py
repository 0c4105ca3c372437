"""Convert a row of any format to examples, or report what would be lost of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.data.rows.formats import Example, Shape
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.kinds.documents import DOCUMENTS
from paceline.data.rows.row_errors import Problem, Tally
from paceline.data.rows.tools_and_documents import with_beside
from paceline.data.rows.unread_fields import FieldReader
from paceline.data.rows.values import Row, RowError

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection


@dataclass(frozen=True)
class Reading:
    """How rows are read: ``train_on``, ``strict`` and ``converter`` as in the config, ``kind`` of row.

    ``answers_only``: the config itself asks for loss on the answers alone, so that rows must have answers.
    """

    train_on: str = "assistant"
    kind: RowKind = DOCUMENTS
    strict: bool = False
    converter: str | None = None
    answers_only: bool = False

    @classmethod
    def of(cls, data: DataSection, kind: RowKind) -> Reading:
        """Return how rows of this kind are read under a config's ``data``."""
        train_on = "all" if data.train_on == "all" else "assistant"
        return cls(train_on, kind, data.strict, data.converter, answers_only=data.train_on == "assistant")

    def refuses(self, shape: Shape) -> bool:
        """Whether rows of this shape have no answer, though the loss is asked for on answers alone."""
        learns = self.kind.trained_tokens(self.train_on) == "assistant" and not self.kind.answered
        return self.answers_only and learns and shape.format == "text"


class RowReader:
    """Convert rows of one shape to examples; ``unread`` counts fields that are not read."""

    def __init__(self, shape: Shape, reading: Reading) -> None:
        self._shape, self._kind = shape, reading.kind
        weighs = reading.kind.learns_tokens and not reading.kind.answered
        self._fields = FieldReader(
            shape, keeps_rows=reading.kind.keeps_rows, weighs=weighs, strict=reading.strict
        )

    @property
    def unread(self) -> dict[str, Tally]:
        return self._fields.unread

    def count(self, names: Iterable[str], where: str) -> None:
        """Count a row for each field that the chat template did not render."""
        self._fields.count(names, where)

    def read(self, row: Row, where: str) -> tuple[Example, ...] | Problem:
        """Return the examples of a row, or the problem.

        Fields that would be lost are reported first, all at once.
        """
        lost = self._fields.look(row, where)
        if lost:
            (reason, detail), *also = lost
            return Problem(reason, where, detail, tuple(also))
        try:
            return tuple(with_beside(one, row) for one in self._kind.normalise(row, self._shape))
        except RowError as error:
            return Problem(error.reason, where, error.detail)
