"""Micro-batches from the token table: flat, without padding, labels shifted (``protocols.batch``)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.data_order import ORDER_ALGORITHM, epoch_bins, epoch_documents
from paceline.data.images.load import ImageLoader
from paceline.data.images.table import PlacedImage
from paceline.data.packing import Bins, efficiency
from paceline.data.token_table import TokenTable, decode_labels
from paceline.protocols.batch import IGNORE_INDEX, Batch, with_prefixes
from paceline.protocols.images import Images

_EPOCHS_KEPT = 2  # the current epoch and the one of evaluation or prefetching


class PackedSource:
    """A ``protocols.batch.RowSource`` over a token table: rows are bins of documents or single documents.

    Bins with ``packing``. The documents of a group (``TokenTable.group``: both halves of a preference pair)
    are adjacent in one row. ``seq_len``: maximum tokens of a row (for pairs of each half: rows have room for
    twice as many). ``shuffle=False`` (evaluation) keeps the table's order. ``columns``: extra values [D] or
    [D, K] of the documents, which batches hold as ``extras``. Stateless: rows are a function of (table,
    seq_len, packing, seed, epoch) only. So any rank of any world size can read any position at any time.
    Raises DataError if a document is longer than ``seq_len``.
    """

    algorithm = ORDER_ALGORITHM

    def __init__(
        self,
        table: TokenTable,
        *,
        seq_len: int,
        packing: bool,
        seed: int,
        pad_token_id: int,
        shuffle: bool = True,
        images: ImageLoader | None = None,
    ) -> None:
        self.table = table
        self.seq_len = seq_len
        self.packing = packing
        self.seed = seed
        self.pad_token_id = pad_token_id
        self.shuffle = shuffle
        self.images = images
        self.columns: dict[str, NDArray[np.generic]] = {}
        self._layouts: dict[int, Bins] = {}
        self._lock = threading.Lock()  # several threads make batches

    def layout(self, epoch: int) -> Bins:
        """Return the rows of an epoch in order."""
        with self._lock:
            return self._layout(epoch)

    def _layout(self, epoch: int) -> Bins:
        if epoch not in self._layouts:
            weights = self.table.weights if self.shuffle else (1.0,)
            bins = epoch_bins(
                epoch_documents(self.table.group_dataset, weights, self.seed, epoch),
                self.table.group_lengths,
                seq_len=self.table.room(self.seq_len),
                packing=self.packing,
                seed=self.seed,
                epoch=epoch,
                shuffle=self.shuffle,
            )
            if self.table.group != 1:
                documents, counts = self.table.documents_of(bins.items)
                ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
                # The bins were of groups; from here on they are of documents.
                bins = Bins(documents, ends[bins.offsets])
            while len(self._layouts) >= _EPOCHS_KEPT:
                # The oldest: a dict keeps the order of insertion.
                del self._layouts[next(iter(self._layouts))]
            self._layouts[epoch] = bins
        return self._layouts[epoch]

    def num_rows(self, epoch: int) -> int:
        """Return the rows of an epoch; equal in all epochs unless a mixture samples anew in each."""
        if not self.shuffle or all(weight == 1 for weight in self.table.weights):
            epoch = self._known_epoch(epoch)
        return len(self.layout(epoch))

    def _known_epoch(self, epoch: int) -> int:
        """Return ``epoch`` if its layout is cached, else any cached one: the number of bins depends only on
        the lengths."""
        with self._lock:
            return epoch if epoch in self._layouts or not self._layouts else next(iter(self._layouts))

    def efficiency(self, epoch: int = 0) -> float:
        """Return tokens divided by the capacity of all rows."""
        return efficiency(self.layout(epoch), self.table.lengths, self.table.room(self.seq_len))

    def document_ids(self, epoch: int, positions: Sequence[int]) -> list[int]:
        """Return the documents of these rows in order; -1 for a filler."""
        bins = self.layout(epoch)
        filler = [-1] * (self.table.group or 1)
        rows = (bins.bin(p).tolist() if 0 <= p < len(bins) else filler for p in positions)
        return list(itertools.chain.from_iterable(rows))

    def batch(self, epoch: int, positions: Sequence[int]) -> Batch:
        """Return the micro-batch at these positions of the epoch's order.

        A position of -1 or past the end gives a filler row.
        """
        ids = self.document_ids(epoch, positions)
        # The complement: a token without loss
        filler = np.full(2, ~self.pad_token_id, np.int32)
        documents = [self.table.coded(i) if i >= 0 else filler for i in ids]
        available = len(self.layout(epoch))
        batch = build_batch(documents, ids, sum(0 <= position < available for position in positions))
        pictures = self._images([self._pictures_of(i) for i in ids], documents)
        batch = replace(batch, group=self.table.group or 1, extras=self._extras(ids), images=pictures)
        # Equal tokens of pictures are not yet equal pictures: with any, no document takes another's prefix
        return with_prefixes(batch) if self.table.group > 1 and pictures is None else batch

    def mismatched(self, epoch: int, positions: Sequence[int], among: range) -> Batch:
        """Return the rows at ``positions``, each prompt with the answer of the document before it in
        ``among``.

        The first document gets the last one's answer, as in TRL's ``KL_completion_ids``. Here the result
        depends on the data order alone, however ``among`` is split over micro-batches and ranks.
        """
        bins = self.layout(epoch)
        ids, documents, seen = self.document_ids(epoch, positions), [], list[list[PlacedImage]]()
        for position in positions:
            # The row before; the first one's is the last.
            before = among[(position - among.start - 1) % len(among)] if position in among else -1
            previous = bins.bin(before)[-1] if before >= 0 else -1
            for document in self.document_ids(epoch, [position]):
                joined, pictures = self._with_answer_of(document, int(previous))
                documents.append(joined)
                seen.append(pictures)
                previous = document
        batch = build_batch(documents, ids, sum(position in among for position in positions))
        return replace(batch, images=self._images(seen, documents))

    def _with_answer_of(self, document: int, other: int) -> tuple[NDArray[np.int32], list[PlacedImage]]:
        """Join the prompt of ``document`` (before its first label) and ``other``'s answer, up to ``seq_len``.

        Return the document, coded, and its pictures. A filler stays a filler.
        """
        if document < 0:
            return np.full(2, ~self.pad_token_id, np.int32), []
        prompt, answer = self.table.coded(document), self.table.coded(other)
        # argmax of booleans is the first True.
        prompt, begin = prompt[: int((prompt >= 0).argmax())], int((answer >= 0).argmax())
        joined = np.concatenate([prompt, answer[begin:]])[: self.seq_len]
        if self.images is None:
            return joined, []
        before = self.images.within(self._pictures_of(document), prompt)
        rest = self._pictures_of(other)[len(self.images.within(self._pictures_of(other), answer[:begin])) :]
        return self.images.fitted(joined, [*before, *rest])

    def _pictures_of(self, document: int) -> list[PlacedImage]:
        """Return the pictures of a document with their tokens; a filler has none."""
        known = self.table.images is not None and document >= 0
        return self.table.images.of(self.table.row_in_file(document)) if known and self.table.images else []

    def _images(
        self, pictures: Sequence[Sequence[PlacedImage]], documents: Sequence[NDArray[np.int32]]
    ) -> Images | None:
        """Return the images of documents (coded); None if there are none."""
        if self.images is None:
            return None
        return self.images.images(pictures, [decode_labels(document)[0] for document in documents])

    def _extras(self, ids: list[int]) -> dict[str, torch.Tensor]:
        """Return the extra columns of the documents; 0 for a filler."""
        extras = {}
        documents = np.array(ids, np.int64)
        for name, values in {**self.table.columns, **self.columns}.items():
            picked = np.zeros((len(ids), *values.shape[1:]), np.float64)
            picked[documents >= 0] = values[documents[documents >= 0]]
            extras[name] = torch.from_numpy(picked)
        return extras


def build_batch(documents: Sequence[NDArray[np.int32]], ids: Sequence[int], num_rows: int) -> Batch:
    """Build a flat batch of coded documents (see ``data.token_table``)."""
    lengths = np.array([len(d) for d in documents], np.int64)
    ends = np.cumsum(lengths)
    input_ids, unshifted = decode_labels(np.concatenate(documents))
    labels = np.full(len(unshifted), IGNORE_INDEX, np.int64)
    labels[:-1] = unshifted[1:]
    labels[ends - 1] = IGNORE_INDEX  # the next document's first token is not a label
    # Each document's positions begin at 0 again.
    positions = np.arange(len(unshifted), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    boundaries = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
    return Batch(
        input_ids=torch.from_numpy(input_ids.astype(np.int64))[None],
        labels=torch.from_numpy(labels)[None],
        position_ids=torch.from_numpy(positions)[None],
        cu_seqlens=torch.from_numpy(boundaries),
        max_seqlen=int(lengths.max()),
        document_ids=torch.tensor(ids, dtype=torch.int64),
        num_rows=num_rows,
    )
