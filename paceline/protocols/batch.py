"""A micro-batch: documents laid end to end without padding, with their boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

IGNORE_INDEX = -100
MISMATCHED = "mismatched"  # in ``Batch.others``: the same prompts, each with the answer to another one


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one rank: ``D`` documents, ``T`` tokens, ``R`` rows (bins when packed, documents when not).

    input_ids      int64 [1, T]    documents end to end, no padding
    labels         int64 [1, T]    ALREADY SHIFTED: the token to predict at this position, or IGNORE_INDEX; the last position of a document is IGNORE_INDEX
    position_ids   int64 [1, T]    restart at 0 at every document
    cu_seqlens     int32 [D + 1]   boundaries of the documents: 0, …, T (a CPU tensor stays on CPU: attention loops over it)
    max_seqlen     int             the longest document
    document_ids   int64 [D]       global index of each document in the prepared set; -1 for a filler row (weight 0)
    num_rows       int             real rows in this micro-batch (fillers not counted)
    group          int             documents that belong together and follow each other: 2 for preference pairs (chosen, rejected)
    extras         name -> [D] or [D, K]    what is known of each document: ``margin`` of its pair (float64), its classes, …
    shared         D ints or ()    how many of a document's first tokens are those of the last document before it that shares none; (): not known
    others         name -> Batch   micro-batches of other rows that go with this one (see ``MISMATCHED``); a device gets them by themselves
    tokens         name -> [1, T]  what is known of each labelled position (elsewhere 0): the log-probability of its label at sampling, …

    A filler is one document (``group`` of them) of ``[pad, pad]`` without labels: it touches every parameter and weighs nothing.
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

    @property
    def num_tokens(self) -> int:
        """Tokens of real documents (fillers not counted)."""
        lengths = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        return int(lengths[self.document_ids.to(lengths.device) >= 0].sum())

    def num_labels(self) -> Tensor:
        """int64 scalar: positions that carry a label."""
        return (self.labels != IGNORE_INDEX).sum()

    def at_labels(self, name: str) -> Tensor:
        """[L]: the field ``name`` of ``tokens`` at the labelled positions, in the order of a root module's answers."""
        return self.tokens[name][self.labels != IGNORE_INDEX]

    def pinned(self) -> Batch:
        """The same batch in page-locked memory, which CUDA copies from without waiting; ``cu_seqlens``, which stays on the CPU, as it is."""
        moved = {
            f.name: getattr(self, f.name).pin_memory()
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor) and f.name != "cu_seqlens"
        }
        extras = {name: value.pin_memory() for name, value in self.extras.items()}
        tokens = {name: value.pin_memory() for name, value in self.tokens.items()}
        others = {name: batch.pinned() for name, batch in self.others.items()}
        return replace(self, **moved, extras=extras, tokens=tokens, others=others)

    def with_numbers(self, numbers: Mapping[str, float]) -> Batch:
        """The same batch with ``numbers`` among its ``extras``, float64 and equal for all documents."""
        count = self.document_ids.numel()
        return replace(
            self,
            extras={**self.extras, **{n: torch.full((count,), v, dtype=torch.float64) for n, v in numbers.items()}},
        )

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; ``cu_seqlens`` stays on the CPU (its values are read by Python loops)."""
        if device.type == "cpu":
            return self
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor) and f.name != "cu_seqlens"
        }
        extras = {name: value.to(device, non_blocking=True) for name, value in self.extras.items()}
        tokens = {name: value.to(device, non_blocking=True) for name, value in self.tokens.items()}
        return replace(self, **moved, extras=extras, tokens=tokens)
