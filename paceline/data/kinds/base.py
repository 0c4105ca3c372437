"""``RowKind``: how a row of one kind is recognised and read, how many documents it gives, and which numbers stand beside each."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.registry import load_attr
from paceline.core.tables import ROW_KINDS
from paceline.data.digests import sha256_of
from paceline.data.formats import Example, Row, Shape


class RowKind(ABC):
    """What a row is. Without state: one object serves all processes that tokenise.

    ``words``: what a person calls it. ``group``: documents a row gives, that stay side by side. ``columns``: names of the numbers that stand beside each
    document (``Example.values``; 0 where an example names none), read back as ``TokenTable.columns`` and, of a batch, ``Batch.extras``. ``answered``: the
    model answers the rows itself in training, so that nothing of them is learnt and none is cut. ``keeps_rows``: rows are kept whole for a reward to
    look at. ``conversations``: formats whose turns a chat template has to mark.
    """

    words: str
    group: int = 1
    columns: tuple[str, ...] = ()
    answered: bool = False
    keeps_rows: bool = False
    conversations: frozenset[str] = frozenset()

    @abstractmethod
    def detect(self, rows: Sequence[Row], *, where: str, asked: str, mapping: Mapping[str, str] | None) -> Shape:
        """How rows are read, from the first of them; ``asked`` and ``mapping`` are ``format`` and ``columns`` of the data set. Raises DataError."""

    @abstractmethod
    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """The ``group`` examples of a row. Raises RowError."""

    def learnt(self, train_on: str) -> str:
        """``data.train_on`` as it holds for rows of this kind."""
        return train_on

    def same(self, documents: Sequence[Iterable[int]]) -> bool:
        """Whether the coded documents of a row, cut to their length, say nothing apart from each other."""
        return False

    def identity(self) -> list[str]:
        """What tells this kind from others in the key of prepared data: the sources of our own are in it already, a user's own are added here."""
        own = type(self)
        name = f"{own.__module__}:{own.__qualname__}"
        if own.__module__.startswith("paceline."):
            return [name]
        return [name, sha256_of(Path(inspect.getfile(own)))]


def row_kind(name: str) -> RowKind:
    """The kind that an algorithm's spec names. Raises ConfigError for an unknown one."""
    found: Any = load_attr(ROW_KINDS.get(name, name))
    assert isinstance(found, RowKind), f"{name} is no RowKind"
    return found
