"""The token table: documents in memory-mapped Arrow, written once, read by every rank without copies.

One int32 per token holds both the token and whether it has loss: a labelled token is its id, an unlabelled
one ``~id`` (negative).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.images.table import ImageTable

I32 = NDArray[np.int32]
_FACTS = 5  # column index of ``facts`` in the file; the extra columns follow it


def encode_labels(input_ids: I32, labelled: NDArray[np.bool_]) -> I32:
    """Return int32 [n]: ids and label mask in one number each."""
    # ~id = -id - 1: token 0 has a complement too, which -0 would not be.
    return np.where(labelled, input_ids, ~input_ids).astype(np.int32, copy=False)


def decode_labels(coded: I32) -> tuple[I32, I32]:
    """Return (input_ids, labels), int32 [n], NOT shifted; labels are ids, or IGNORE_INDEX without loss."""
    from paceline.protocols.batch import IGNORE_INDEX  # here, so that preparation does not import torch

    return np.where(coded < 0, ~coded, coded), np.where(coded < 0, np.int32(IGNORE_INDEX), coded)


@dataclass(frozen=True)
class DocumentBlock:
    """A block of documents to write (``coded`` is flat; the other arrays have one entry per document)."""

    coded: I32
    lengths: I32
    num_labels: I32
    keys: NDArray[np.uint64]
    dataset: I32
    row: NDArray[np.int64]
    facts: Sequence[str] = ()
    columns: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lengths)


class TableWriter:
    """Write ``tokens.arrow`` (Arrow IPC file) block by block.

    ``columns``: names of the extra numbers per document.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        import pyarrow as pa

        self._schema = pa.schema(
            [
                # 64-bit offsets: a block may have more than 2^31 tokens
                ("tokens", pa.large_list(pa.int32())),
                ("num_labels", pa.int32()),
                ("key", pa.uint64()),
                ("dataset", pa.int32()),
                ("row", pa.int64()),
                ("facts", pa.large_string()),
                *((name, pa.float64()) for name in columns),
            ]
        )
        self._columns = tuple(columns)
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def write(self, block: DocumentBlock) -> None:
        """Append a block."""
        import pyarrow as pa

        offsets = np.zeros(len(block) + 1, np.int64)
        np.cumsum(block.lengths, out=offsets[1:])
        columns = [
            pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(block.coded)),
            pa.array(block.num_labels),
            pa.array(block.keys),
            pa.array(block.dataset),
            pa.array(block.row),
            pa.array(list(block.facts) or [""] * len(block), pa.large_string()),
            *(pa.array(block.columns[name]) for name in self._columns),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        """Finish the file; it cannot be read before."""
        self._writer.close()
        self._sink.close()


class TokenTable:
    """Some documents (``index``, e.g. the training split) of a token file, numbered 0 … len-1.

    lengths     int32 [n]   tokens of each document
    num_labels  int32 [n]   labelled tokens of each document (its first token is never predicted)
    keys        uint64 [n]  hash of the prompt (of the full text for plain text)
    dataset     int32 [n]   index of the data set in ``data.train`` (or ``data.eval``)
    source_row  int64 [n]   row number in that data set
    columns     name -> float64 [n]: extra numbers (``RowKind.columns``), e.g. a pair's margin
    weights     a weight for each data set (mixtures)
    group       consecutive documents that belong together (2: chosen and rejected of a pair); 0: as many as
                each row of its data set has
    starts      int64 [g + 1]: where each group begins, and the number of documents
    images      the documents' pictures; None where rows have none
    """

    def __init__(
        self,
        path: Path,
        index: NDArray[np.int64] | None = None,
        weights: tuple[float, ...] = (1.0,),
        group: int = 1,
    ) -> None:
        import pyarrow as pa

        self.path = path
        # Map the file and view the tokens of each block without a copy.
        with pa.memory_map(str(path)) as source:
            batches: list[pa.RecordBatch] = [
                b for b in pa.ipc.open_file(source).read_all().to_batches() if b.num_rows
            ]
        self._batches = batches  # keeps the memory map alive
        self._values = [_as_numpy(b.column(0).values) for b in batches]
        self._offsets = [_as_numpy(b.column(0).offsets) for b in batches]
        self._first_row = np.cumsum([0, *(b.num_rows for b in batches)])
        # The columns with one entry per document are small: read them, restricted to the index.
        self._index = np.arange(int(self._first_row[-1]), dtype=np.int64) if index is None else index
        self.weights = weights
        self.group = group
        self.images: ImageTable | None = None
        every = [np.diff(o).astype(np.int32) for o in self._offsets]
        self.lengths: I32 = (np.concatenate(every) if every else np.empty(0, np.int32))[self._index]
        self.num_labels: I32 = self._column(1, np.int32)
        self.keys: NDArray[np.uint64] = self._column(2, np.uint64)
        self.dataset: I32 = self._column(3, np.int32)
        self.source_row: NDArray[np.int64] = self._column(4, np.int64)
        names = batches[0].schema.names[_FACTS + 1 :] if batches else []
        self.columns: dict[str, NDArray[np.float64]] = {
            name: self._column(_FACTS + 1 + i, np.float64) for i, name in enumerate(names)
        }
        self.starts = starts_of(self.dataset, self.source_row, group)

    def _column(self, number: int, dtype: type) -> NDArray:
        parts = [_as_numpy(b.column(number)) for b in self._batches]
        return (np.concatenate(parts) if parts else np.empty(0, dtype)).astype(dtype, copy=False)[self._index]

    def __len__(self) -> int:
        return len(self._index)

    @property
    def group_lengths(self) -> I32:
        """int32 [g]: tokens of each group of documents."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])
        return np.diff(ends[self.starts]).astype(np.int32)

    @property
    def group_dataset(self) -> I32:
        """int32 [g]: the data set of each group."""
        return self.dataset[self.starts[:-1]]

    def room(self, seq_len: int) -> int:
        """Return the capacity of a row in tokens, if a document has at most ``seq_len``."""
        return seq_len * self.group if self.group else max(seq_len, int(self.group_lengths.max(initial=0)))

    def documents_of(self, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (documents of these groups, in order; number of documents of each group)."""
        return members(self.starts, groups)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def coded(self, document: int) -> I32:
        """Return int32 [length]: the document as stored (see ``decode_labels``), a view of the file."""
        batch, local = self._place(document)
        offsets = self._offsets[batch]
        return self._values[batch][offsets[local] : offsets[local + 1]]

    def row_in_file(self, document: int) -> int:
        """Return a document's row in the token file, and in the files beside it."""
        return int(self._index[document])

    def _place(self, document: int) -> tuple[int, int]:
        """Return (block of the file, row within it) of a document."""
        row = int(self._index[document])
        # ``right``: a block's first row belongs to that block.
        batch = int(np.searchsorted(self._first_row, row, side="right")) - 1
        return batch, row - int(self._first_row[batch])

    def facts(self, document: int) -> dict[str, Any]:
        """Return the row of a prompt that the model answers itself, with ``prompt`` and ``answer``.

        Empty for others.
        """
        batch, local = self._place(document)
        facts: dict[str, Any] = json.loads(self._batches[batch].column(_FACTS)[local].as_py() or "{}")
        return facts

    def row(self, document: int) -> tuple[I32, I32]:
        """Return (input_ids, labels) of a document, int32 [length], labels NOT shifted."""
        return decode_labels(self.coded(document))


def starts_of(dataset: I32, row: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Return int64 [g + 1]: where each group of documents begins, and their number. ``group``: documents of
    each; 0: those of one row of a data set.
    """
    if group:
        return np.arange(0, len(row) + 1, group, dtype=np.int64)
    # A row's number alone may be that of another data set's row beside it.
    begins = (np.diff(row) != 0) | (np.diff(dataset) != 0)
    inner = np.flatnonzero(begins) + 1
    return (
        np.concatenate([np.zeros(1, np.int64), inner, np.full(1, len(row))])
        if len(row)
        else np.zeros(1, np.int64)
    )


def members(
    starts: NDArray[np.int64], groups: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (documents of ``groups``, in order; number of documents of each group)."""
    counts = np.diff(starts)[groups]
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(starts[:-1][groups], counts) + within, counts


def _as_numpy(column: pa.Array) -> NDArray:
    """Return a view of a numeric column without nulls.

    ``column.to_numpy`` would import pandas (60 MB per process).
    """
    numbers = np.frombuffer(column.buffers()[1], dtype=column.type.to_pandas_dtype())
    # A slice shares its parent's buffer from the offset on.
    return numbers[column.offset : column.offset + len(column)]
