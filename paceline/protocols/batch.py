"""A micro-batch: documents concatenated without padding, and the rows from which it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from paceline.plan.hardware.device_kinds import CPU, KINDS
from paceline.protocols.images import Images

IGNORE_INDEX = -100
MISMATCHED = "mismatched"  # in ``Batch.others``: the same prompts, each with the answer to another one


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one rank: ``D`` documents, ``T`` tokens, ``R`` rows (bins when packed, documents
    when not).

    input_ids      int64 [1, T]    documents concatenated, no padding
    labels         int64 [1, T]    ALREADY SHIFTED: the token to predict at this position, or IGNORE_INDEX (as
                                   at the last position of every document)
    position_ids   int64 [1, T]    restart at 0 at every document
    cu_seqlens     int32 [D + 1]   boundaries of the documents: 0, …, T (stays on the CPU: attention loops
                                   over it)
    max_seqlen     int             length of the longest document
    document_ids   int64 [D]       global index of each document in the prepared set; -1 for a filler (weight
                                   0)
    num_rows       int             real rows in this micro-batch (fillers not counted)
    group          int             size of groups of consecutive documents: 2 for preference pairs (chosen,
                                   rejected)
    extras         name -> [D] or [D, K]    per-document values: ``margin`` of its pair (float64), its
                                            classes, …
    shared         D ints or ()    length of the prefix a document shares with the last one before it that has
                                   0 here; (): unknown
    others         name -> Batch   micro-batches of other rows that go with this one (see ``MISMATCHED``);
                                   moved to a device separately
    tokens         name -> [1, T]  per-token values at labelled positions (elsewhere 0): log-probability at
                                   sampling, …
    places         int64 [L] or None    the labelled positions, found on the host before the move to a
                                        device, where finding them would make the host wait; None: see
                                        ``label_places``
    images       Images or None    the images of all documents; None: no document has one

    A filler is one document (``group`` of them) of ``[pad, pad]`` without labels: every parameter gets a
    gradient from it, and it has weight 0.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    document_ids: Tensor
    num_rows: int
    group: int = field(default=1, kw_only=True)
    shared: tuple[int, ...] = field(default=(), kw_only=True)
    extras: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    tokens: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    others: Mapping[str, Batch] = field(default_factory=dict, kw_only=True)
    places: Tensor | None = field(default=None, kw_only=True)
    images: Images | None = field(default=None, kw_only=True)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of real documents (fillers not counted)."""
        lengths = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        return int(lengths[self.document_ids.to(lengths.device) >= 0].sum())

    def num_labels(self) -> Tensor:
        """Return the number of labelled positions, int64 scalar."""
        return (self.labels != IGNORE_INDEX).sum()

    def at_labels(self, name: str) -> Tensor:
        """Return the field ``name`` of ``tokens`` at the labelled positions [L], in the order of a root
        module's outputs.
        """
        return self.tokens[name].flatten().index_select(0, self.label_places())

    def label_places(self) -> Tensor:
        """Return the labelled positions, int64 [L] ascending, on the labels' device."""
        if self.places is not None:
            return self.places
        return (self.labels.flatten() != IGNORE_INDEX).nonzero().squeeze(1)

    def boundaries(self) -> Tensor:
        """Return ``cu_seqlens`` as int64 [D + 1] on the labels' device, without making the host wait."""
        return self.cu_seqlens.to(self.labels.device, non_blocking=True).long()

    def pinned(self) -> Batch:
        """Return the same batch in pinned memory, so that copies to the device are asynchronous."""
        moved = {
            f.name: getattr(self, f.name).pin_memory()
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor) and f.name != "places"
        }
        moved["places"] = self.label_places().pin_memory()
        extras = {name: value.pin_memory() for name, value in self.extras.items()}
        tokens = {name: value.pin_memory() for name, value in self.tokens.items()}
        others = {name: batch.pinned() for name, batch in self.others.items()}
        images = None if self.images is None else self.images.moved(Tensor.pin_memory)
        return replace(self, **moved, extras=extras, tokens=tokens, others=others, images=images)

    def pinned_as(self, other: Batch) -> Batch:
        """Return the same batch, in pinned memory if ``other``'s is and this is not."""
        return self.pinned() if other.cu_seqlens.is_pinned() and not self.input_ids.is_pinned() else self

    def sent(self, values: Tensor, device: torch.device) -> Tensor:
        """Copy a host tensor that belongs to this batch to ``device``, from pinned memory if the batch is
        pinned (``cu_seqlens`` stays on the host).
        """
        return (values.pin_memory() if self.cu_seqlens.is_pinned() else values).to(device, non_blocking=True)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the batch itself (not of ``others``)."""
        values = (getattr(self, f.name) for f in fields(self))
        yield from (value for value in values if isinstance(value, Tensor))
        yield from (*self.extras.values(), *self.tokens.values())
        if self.images is not None:
            yield from self.images.tensors()

    def with_numbers(self, numbers: Mapping[str, float]) -> Batch:
        """Return the same batch with ``numbers`` added to ``extras``, float64 and equal for all documents."""
        count, pin = self.document_ids.numel(), bool(numbers) and self.document_ids.is_pinned()
        columns = {n: torch.full((count,), v, dtype=torch.float64) for n, v in numbers.items()}
        added = {n: values.pin_memory() if pin else values for n, values in columns.items()}
        return replace(self, extras={**self.extras, **added})

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on ``device``; ``cu_seqlens`` stays on the CPU (Python loops read it), and
        ``others`` are not moved.
        """
        if device.type == "cpu":
            return self
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor) and f.name not in ("cu_seqlens", "places")
        }
        moved["places"] = self.label_places().to(device, non_blocking=True)
        narrow = not KINDS.get(device.type, CPU).float64  # meta is no kind
        extras = {
            name: (value.float() if narrow and value.dtype == torch.float64 else value).to(
                device, non_blocking=True
            )
            for name, value in self.extras.items()
        }
        tokens = {name: value.to(device, non_blocking=True) for name, value in self.tokens.items()}
        images = None if self.images is None else self.images.moved(lambda x: x.to(device, non_blocking=True))
        return replace(self, **moved, extras=extras, tokens=tokens, images=images)


class RowSource(Protocol):
    """An ordered set of rows (bins when packed), addressable by position (contract 4).

    ``num_rows(epoch)`` rows. ``batch(epoch, positions)`` builds the micro-batch of the rows at those
    positions of the epoch's order. A position of -1 or beyond the end gives a filler. Stateless: the position
    in training is two integers, epoch and position.
    """

    def num_rows(self, epoch: int) -> int: ...

    def batch(self, epoch: int, positions: list[int]) -> Batch: ...

    def mismatched(self, epoch: int, positions: list[int], among: range) -> Batch:
        """Return the same rows with each prompt's answer replaced by that of the previous document among the
        rows at ``among`` (the last one's for the first).
        """

    def document_ids(self, epoch: int, positions: list[int]) -> list[int]: ...


MIN_SHARED_TOKENS = 8  # tokens; sharing a shorter prefix saves nothing


def with_prefixes(batch: Batch) -> Batch:
    """Return ``batch`` with ``Batch.shared`` set: each document is compared with the last one before it that
    shares no prefix.
    """
    ids, bounds = batch.input_ids[0], batch.cu_seqlens.tolist()
    lengths: list[int] = []
    owner = 0
    for document, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        first = slice(bounds[owner], bounds[owner + 1])
        common = common_prefix(ids[first], ids[start:end]) if document else 0
        lengths.append(common if common >= MIN_SHARED_TOKENS else 0)
        owner = owner if lengths[-1] else document
    return replace(batch, shared=tuple(lengths) if any(lengths) else ())


def common_prefix(first: Tensor, second: Tensor) -> int:
    """Return the length of the common prefix of two int64 [n], [m]."""
    size = min(len(first), len(second))
    differ = (first[:size] != second[:size]).nonzero()
    return int(differ[0]) if len(differ) else size
