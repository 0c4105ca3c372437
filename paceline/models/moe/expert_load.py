"""How a mixture's tokens spread over its experts: counted where the experts are called, so it is what each
family's own router chose (groups and biases included). Nothing waits for the device: the counts stay there
until a window ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.shared_prefix import SharedPrompts
from paceline.protocols.batch import Batch

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


class RouterLoad:
    """Counts the tokens of each expert of each layer, fillers left out, while ``counting``."""

    def __init__(self, hf: HFModel) -> None:
        self._layers = expert_layers(hf)
        self._real: Tensor | None = None  # int64 [tokens as the experts see them]: 0 for fillers and padding
        self._counts: Tensor | None = None  # int64 [layers, experts]
        self._hooks = [
            layer.register_forward_pre_hook(self._hook(index)) for index, layer in enumerate(self._layers)
        ]

    @contextmanager
    def counting(
        self, batch: Batch, *, shared: SharedPrompts | None = None, rows: PaddedRows | None = None
    ) -> Iterator[None]:
        """Count inside the context, not in a later recomputation; without gradients nothing is counted."""
        if self._layers and torch.is_grad_enabled():
            lengths = (bounds := batch.boundaries())[1:] - bounds[:-1]
            real = (batch.document_ids >= 0).long()
            real = torch.repeat_interleave(real, lengths, output_size=batch.input_ids.shape[1])
            if shared is not None:
                real = shared.kept(real, 0)
            self._real = real if rows is None else (real[rows.index] * rows.real).flatten()
        try:
            yield
        finally:
            self._real = None

    def stop(self) -> None:
        """Count no more: compiled layers would be cut in pieces by it."""
        for hook in self._hooks:
            hook.remove()
        self._layers = []

    def taken(self) -> Tensor | None:
        """Return the counts since the last call, int64 [layers, experts] on the device; None: none."""
        found, self._counts = self._counts, None
        return found

    def _hook(self, index: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def count(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            if self._real is None:
                return
            with torch.no_grad():
                self._add(index, _experts_of(layer), given[1])

        return count

    def _add(self, index: int, experts: int, chosen: Tensor) -> None:
        assert self._real is not None
        if self._counts is None:
            self._counts = torch.zeros(len(self._layers), experts, dtype=torch.int64, device=chosen.device)
        weights = self._real[:, None].expand(chosen.shape).reshape(-1)
        self._counts[index].scatter_add_(0, chosen.reshape(-1), weights)


def expert_layers(hf: HFModel) -> list[nn.Module]:
    """Return the modules that hold all experts of a layer and are called with (hidden states, chosen experts,
    their weights).
    """
    return [m for m in hf.modules() if hasattr(m, "_apply_gate") and hasattr(m, "num_experts")]


def _experts_of(layer: nn.Module) -> int:
    count: int = vars(layer)["num_experts"]
    return count
