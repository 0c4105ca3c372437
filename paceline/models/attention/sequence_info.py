"""The document boundaries of the running micro-batch: packed attention needs them, and no Hugging Face model
passes them on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from paceline.models.attention.context_parallel import ContextBatch, ContextParallel
from paceline.models.attention.flex_attention import VisibleKeys
from paceline.models.attention.kernel_choice import AttentionKernels, RowKernels
from paceline.models.attention.padded_documents import DocumentsByLength, PaddedRows
from paceline.models.module_tensors import replaced
from paceline.models.shared_prefix import SharedPrompts
from paceline.plan.model.family import IN_WINDOWS
from paceline.protocols.batch import Batch

_ATTRIBUTE = "_paceline_layout"
RECORD = "_paceline_record"  # where the options of an attention module are recorded


@dataclass(frozen=True)
class PackedSequenceInfo:
    """Documents of one flat micro-batch: ``bounds`` (D + 1 ints), the same as an int32 tensor on the device,
    and the longest document.

    ``on_host``: the boundaries as an int64 tensor on the CPU, for compiled layers.
    ``shared``: prompts that the trunk computes once (``bounds`` are those of whole documents), or None.
    ``context``: the context-parallel group that the tokens are sharded over (``bounds`` cover all of them),
    or None. ``keys``: the boundaries of the documents' keys where they have more than queries (a document's
    queries are then its last ones), else None. ``causal``: a token sees no later one (False: an encoder's
    tokens see all of their document, and a window reaches to both sides). ``blocks``: [start, end) of tokens
    that see each other beside the earlier ones, an image's; with ``in_windows`` in layers with a window only.
    """

    bounds: tuple[int, ...]
    cu_seqlens: Tensor
    max_seqlen: int
    context: ContextParallel | None = None
    shared: SharedPrompts | None = None
    keys: PackedSequenceInfo | None = None
    _visible: dict[int | None, VisibleKeys] = field(default_factory=dict, repr=False, compare=False)
    _blocks: dict[tuple[int, int], PackedSequenceInfo] = field(
        default_factory=dict, repr=False, compare=False
    )
    on_host: Tensor | None = None
    causal: bool = True
    blocks: tuple[tuple[int, int], ...] = ()
    in_windows: bool = False

    @staticmethod
    def of(
        batch: Batch, shared: SharedPrompts | None = None, *, causal: bool = True, both_ways: str = ""
    ) -> PackedSequenceInfo:
        """Return the layout of ``batch``. Reads the boundaries on the CPU, where ``Batch.to`` leaves them.
        ``both_ways``: see ``plan.model.family.Composite``.
        """
        device = batch.input_ids.device
        bounds = tuple(batch.cu_seqlens.tolist())
        blocks = batch.images.blocks(bounds) if both_ways and batch.images is not None else ()
        return PackedSequenceInfo(
            bounds,
            batch.cu_seqlens.to(device=device, dtype=torch.int32, non_blocking=True),
            batch.max_seqlen,
            batch.context if isinstance(batch, ContextBatch) else None,
            shared,
            on_host=batch.cu_seqlens,
            causal=causal,
            blocks=blocks,
            in_windows=both_ways == IN_WINDOWS,
        )

    @staticmethod
    def over(bounds: tuple[int, ...], device: torch.device) -> PackedSequenceInfo:
        """Return the layout of documents with these boundaries."""
        longest = max(b - a for a, b in zip(bounds, bounds[1:], strict=False))
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)
        return PackedSequenceInfo(bounds, cu_seqlens, longest)

    @cached_property
    def span(self) -> Tensor:
        """Return an expanded tensor, almost without storage, whose length is ``max_seqlen``. In a compiled
        layer a number would be a constant; a dim is not.
        """
        return self.cu_seqlens[:1].expand(self.max_seqlen)

    def varying(self) -> tuple[Tensor, ...]:
        """Return the tensors that a compiled layer reads, whose dims all differ from batch to batch."""
        shared = () if self.shared is None else (self.shared.keep, self.shared.expand)
        host = () if self.on_host is None else (self.on_host,)
        return (self.cu_seqlens, self.span, *host, *shared)

    @cached_property
    def padded(self) -> PaddedRows:
        """The positions of the tokens in padded rows, one per document: computed once a micro-batch."""
        return PaddedRows.of(self.cu_seqlens, self.max_seqlen, self.bounds[-1])

    @cached_property
    def by_length(self) -> DocumentsByLength:
        """The documents in groups of about one length: computed once a micro-batch."""
        return DocumentsByLength.of(self.bounds, self.cu_seqlens.device)

    @property
    def longest_keys(self) -> int:
        """The largest number of keys of a document."""
        return (self.keys or self).max_seqlen

    def seen_in(self, window: int | None) -> PackedSequenceInfo:
        """Return the layout for layers with this window: without ``blocks`` where these are not theirs."""
        return self._plain if self.blocks and self.in_windows and window is None else self

    @cached_property
    def _plain(self) -> PackedSequenceInfo:
        return replace(self, blocks=(), _visible={}, _blocks={})

    def blocks_of(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return the blocks of the document at [start, end), counted from its start."""
        return tuple((a - start, b - start) for a, b in self.blocks if start <= a < end)

    def visible(self, window: int | None) -> VisibleKeys:
        """Return the keys that each query sees: computed once a micro-batch for all layers that share a
        window."""
        if window not in self._visible:
            keys = self.keys or self
            counts = self.bounds[-1], keys.bounds[-1]
            self._visible[window] = VisibleKeys.of(
                self.cu_seqlens, keys.cu_seqlens, counts, window, self.causal, self._ahead
            )
        return self._visible[window]

    @cached_property
    def _ahead(self) -> Tensor | None:
        """The last key that each token sees, int64 [T] (a later one within a block); None without blocks."""
        if not self.blocks:
            return None
        last = torch.arange(self.bounds[-1])
        for start, end in self.blocks:
            last[start:end] = end - 1
        return last.to(self.cu_seqlens.device, non_blocking=True)

    def block(self, start: int, end: int) -> PackedSequenceInfo:
        """Return the documents of the tokens [start, end): these are the queries, and the keys begin with the
        document at ``start``. Computed once a micro-batch.
        """
        if (start, end) not in self._blocks:
            begun = self.bounds[bisect_right(self.bounds, start) - 1]
            inside = [b for b in self.bounds if start < b < end]
            device = self.cu_seqlens.device
            keys = PackedSequenceInfo.over((0, *(b - begun for b in inside), end - begun), device)
            queries = PackedSequenceInfo.over((0, *(b - start for b in inside), end - start), device)
            self._blocks[start, end] = queries if begun == start else replace(queries, keys=keys)
        return self._blocks[start, end]

    def whole(self) -> PackedSequenceInfo:
        """Return the same documents with all tokens on this rank."""
        return replace(self, context=None)


class AttentionContext:
    """The current layout of one root module: set during a forward, read by its attention layers (no global
    state).

    ``current`` is the layout of a packed forward. ``rows`` is that of a padded forward, one document per row:
    not needed by attention, but by rotary embeddings that depend on a document's length.

    ``kernels`` chooses the kernel of each attention call, ``row_kernels`` those of norms and similar layers;
    both record which ran.

    Recomputation in the backward restores the layout of its own forward (see ``recompute``), so two forwards
    may precede the first backward.
    """

    def __init__(self) -> None:
        self.current: PackedSequenceInfo | None = None
        self.rows: PackedSequenceInfo | None = None
        self.kernels = AttentionKernels()
        self.row_kernels = RowKernels()

    def attach(self, trunk: nn.Module) -> None:
        """Give every submodule of ``trunk`` a reference to this slot (a plain attribute, neither in the state
        dict nor in the module tree).
        """
        for module in trunk.modules():
            vars(module)[_ATTRIBUTE] = self

    def packed_sequences(self, layout: PackedSequenceInfo | None) -> AbstractContextManager[None]:
        """Set ``current`` to ``layout`` inside the context."""
        return replaced(self, current=layout)

    def padded_rows(self, layout: PackedSequenceInfo) -> AbstractContextManager[None]:
        """Set ``rows`` to ``layout`` inside the context."""
        return replaced(self, rows=layout)


def slot_of(module: nn.Module) -> AttentionContext | None:
    """Return the slot of the root module that ``module`` is part of; None if it is part of none."""
    return getattr(module, _ATTRIBUTE, None)


def sequence_info_of(module: nn.Module) -> PackedSequenceInfo | None:
    """Return the layout of the running packed forward, given one of its modules; None outside of one
    (generation).
    """
    slot = slot_of(module)
    return None if slot is None else slot.current


def row_kernels_of(module: nn.Module) -> RowKernels | None:
    """Return the row-wise kernels of the root module that ``module`` is part of; None if of none."""
    slot = slot_of(module)
    return None if slot is None else slot.row_kernels


PROJECTED = "projected"


@contextmanager
def recording(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Inside the context, ``packed_attention`` stores the options that ``module`` passes to it in the yielded
    dict, and query, key and value as ``PROJECTED``.
    """
    record: dict[str, Any] = {}
    vars(module)[RECORD] = record
    try:
        yield record
    finally:
        del vars(module)[RECORD]
