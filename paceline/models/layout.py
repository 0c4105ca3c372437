"""Where the documents of the running micro-batch lie: what packed attention has to know and no Hugging Face model passes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.models.context_parallel import ContextBatch, ContextParallel
from paceline.models.shared_prompts import SharedPrompts
from paceline.protocols.batch import Batch

_ATTRIBUTE = "_paceline_layout"
_RECORD = "_paceline_record"


@dataclass(frozen=True)
class Layout:
    """Documents of one flat micro-batch: ``bounds`` (D + 1 ints), the same as an int32 tensor on the device, the longest document.

    ``shared``: the beginnings that the trunk computes once (``bounds`` are those of whole documents), or None.
    ``context``: the group that the tokens are shared out over (``bounds`` are those of all of them), or None.
    """

    bounds: tuple[int, ...]
    cu_seqlens: Tensor
    max_seqlen: int
    context: ContextParallel | None = None
    shared: SharedPrompts | None = None

    @staticmethod
    def of(batch: Batch, shared: SharedPrompts | None = None) -> Layout:
        """The layout of ``batch``; boundaries are read on the CPU, where ``Batch.to`` leaves them."""
        device = batch.input_ids.device
        bounds = tuple(batch.cu_seqlens.tolist())
        return Layout(
            bounds,
            batch.cu_seqlens.to(device=device, dtype=torch.int32, non_blocking=True),
            batch.max_seqlen,
            batch.context if isinstance(batch, ContextBatch) else None,
            shared,
        )

    @staticmethod
    def over(bounds: tuple[int, ...], device: torch.device) -> Layout:
        """The layout of documents with these boundaries."""
        longest = max(b - a for a, b in zip(bounds, bounds[1:], strict=False))
        return Layout(bounds, torch.tensor(bounds, dtype=torch.int32, device=device), longest)

    def whole(self) -> Layout:
        """The same documents with all tokens on this rank."""
        return replace(self, context=None)


class LayoutSlot:
    """One cell a root module: set for the length of a forward, read by its attention layers (no global state).

    ``current`` is the layout of a packed forward. ``rows`` is that of a padded one, a document a row: attention needs none there, rotary
    embeddings that follow a document's length do.

    Recomputation in the backward restores the layout its own forward ran under (see ``recompute``), so that two forwards may
    precede the first backward.
    """

    def __init__(self) -> None:
        self.current: Layout | None = None
        self.rows: Layout | None = None

    def attach(self, trunk: nn.Module) -> None:
        """Give every submodule of ``trunk`` a reference (a plain attribute: no state dict, no module tree)."""
        for module in trunk.modules():
            object.__setattr__(module, _ATTRIBUTE, self)

    @contextmanager
    def holding(self, layout: Layout | None) -> Iterator[None]:
        """``current`` is ``layout`` inside."""
        before, self.current = self.current, layout
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def holding_rows(self, batch: Batch) -> Iterator[None]:
        """``rows`` is ``batch``'s layout inside."""
        before, self.rows = self.rows, Layout.of(batch)
        try:
            yield
        finally:
            self.rows = before


def layout_of(module: nn.Module) -> Layout | None:
    """The layout of the running forward as seen by an attention module; None outside of a root module's packed forward (generation)."""
    slot: LayoutSlot | None = getattr(module, _ATTRIBUTE, None)
    return None if slot is None else slot.current


def rows_of(module: nn.Module) -> Layout | None:
    """The documents of the rows of the running padded forward; None outside of one."""
    slot: LayoutSlot | None = getattr(module, _ATTRIBUTE, None)
    return None if slot is None else slot.rows


@contextmanager
def recording(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Inside, ``packed_attention`` writes what ``module`` passes to it (besides tensors q, k, v, mask) into the yielded dict."""
    record: dict[str, Any] = {}
    object.__setattr__(module, _RECORD, record)
    try:
        yield record
    finally:
        object.__delattr__(module, _RECORD)


def record_of(module: nn.Module) -> dict[str, Any] | None:
    """The record being taken of an attention module, or None."""
    return getattr(module, _RECORD, None)
