"""``RowKind``: how rows of one kind are detected and read, and which documents and numbers they give; and
``Documents``, the plainest kind.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.plugins.tables import ROW_KINDS, load_attr
from paceline.data.file_digests import sha256_of
from paceline.data.rows.formats import Example, Shape, detect, normalise
from paceline.data.rows.values import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Part of the keys of prepared data: the room's name when keys were first written, which never changes
_KINDS_OF_THEN = "paceline.data" + ".kinds"


class RowKind(ABC):
    """A kind of row. Stateless: one object serves all tokenizing processes.

    ``stored_name``: a built-in kind's name in keys of prepared data, which never changes. ``words``: its name
    in messages. ``group``: documents per row, which stay adjacent; 0: rows differ. ``columns``: names of
    extra numbers per document (``Example.values``, 0 if missing), read back as ``TokenTable.columns`` and, in
    a batch, ``Batch.extras``. ``answered``: the model answers the rows itself during training, so that they
    have no labels and are never truncated. ``learns_tokens``: tokens of its documents have labels; otherwise
    texts are tokenized as they are. ``classes``: rows have classes (``Example.facts``). ``keeps_rows``: full
    rows are kept for a reward function. ``expected``: a row has an answer that the
    model should give. ``conversations``: formats that need a chat template.
    """

    stored_name: str
    words: str
    group: int = 1
    columns: tuple[str, ...] = ()
    answered: bool = False
    learns_tokens: bool = True
    classes: bool = False
    keeps_rows: bool = False
    expected: bool = True
    conversations: frozenset[str] = frozenset()

    @abstractmethod
    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        """Detect the shape from the first rows. Raises DataError.

        ``requested`` and ``mapping``: ``format`` and ``columns`` of the data set.
        """

    @abstractmethod
    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        """Return the ``group`` examples of a row. Raises RowError."""

    def prompted(
        self, examples: tuple[Example, ...], query_prompt: str, document_prompt: str
    ) -> tuple[Example, ...]:
        """Return a row's examples with the prompts put before its queries and documents, if it has any."""
        return examples

    def trained_tokens(self, train_on: str) -> str:
        """Return ``data.train_on`` as it applies to rows of this kind."""
        return train_on

    def same(self, documents: Sequence[Iterable[int]]) -> bool:
        """Whether the truncated documents of a row are equal, so that the row teaches nothing."""
        return False

    def unlearnable(
        self, columns: Mapping[str, Sequence[float] | NDArray[np.float64]], where: str
    ) -> Iterable[Diagnostic]:
        """Yield warnings about the numbers of all training documents (``columns`` of them, by name)."""
        return ()

    def identity(self) -> list[str]:
        """Return this kind's part of the cache key: its name, and for a user's kind the digest of its
        source."""
        kind = type(self)
        if "stored_name" in vars(kind):
            # Sets prepared so far have this text, whatever the module and the class are called by now
            return [f"{_KINDS_OF_THEN}.{kind.stored_name}:{kind.stored_name.title()}"]
        return [f"{kind.__module__}:{kind.__qualname__}", sha256_of(Path(inspect.getfile(kind)))]


def row_kind(name: str) -> RowKind:
    """Return the kind that an algorithm's spec names. Raises ConfigError for an unknown one."""
    kind = load_attr(ROW_KINDS.get(name, name))
    assert isinstance(kind, RowKind), f"{name} is not a RowKind"
    return kind


class Documents(RowKind):
    """One document per row."""

    stored_name = "documents"
    words = "documents"
    conversations = frozenset({"messages", "sharegpt"})

    def detect(
        self,
        rows: Sequence[Row],
        *,
        where: str,
        requested: str = "auto",
        mapping: Mapping[str, str] | None = None,
    ) -> Shape:
        return detect(rows, where=where, requested=requested, mapping=mapping)

    def normalise(self, row: Row, shape: Shape) -> tuple[Example, ...]:
        return (normalise(row, shape),)


DOCUMENTS = Documents()
