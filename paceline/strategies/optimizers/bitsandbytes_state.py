"""bitsandbytes' 8-bit moments: codes in a tensor of the parameter's shape, and a scale per 256 elements
(Dettmers et al. 2022, arXiv:2110.02861).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

_BLOCK = 256
#: moment → (its scales, its lookup table, the table's name in the optimizer)
_MOMENTS = {"state1": ("absmax1", "qmap1", "dynamic"), "state2": ("absmax2", "qmap2", "udynamic")}
TABLES = frozenset(table for _, table, _ in _MOMENTS.values())  # a KiB each, for all tensors together


class BnbOptimizer(Protocol):
    """What the codec uses of ``bitsandbytes.optim.optimizer.Optimizer8bit``."""

    param_groups: list[dict[str, list[nn.Parameter]]]
    state: dict[nn.Parameter, dict[str, Tensor]]
    name2qmap: dict[str, Tensor]

    def init_state(
        self, group: dict[str, list[nn.Parameter]], p: nn.Parameter, gindex: int, pindex: int
    ) -> None: ...


class BitsAndBytes:
    """The codec of ``bitsandbytes.optim`` with ``optim_bits=8`` (see ``quantised_state.Codec``)."""

    def __init__(self, optimizer: BnbOptimizer) -> None:
        self.optimizer = optimizer

    def parts(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        kept = {name for moment, (scales, _, _) in _MOMENTS.items() for name in (moment, scales)}
        return {name: v for name, v in state.items() if name in kept and isinstance(v, Tensor)}

    def values(self, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
        from bitsandbytes.functional import dequantize_blockwise

        found = {}
        for moment, (scales, _, table) in _MOMENTS.items():
            codes = parts.get(moment)
            if codes is not None and codes.dtype == torch.uint8:
                found[moment] = dequantize_blockwise(
                    codes, absmax=parts[scales], code=self._table(table, codes.device), blocksize=_BLOCK
                ).view(shape)
            elif codes is not None:
                found[moment] = codes
        return found

    def fill(self, parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in parts.items():
            state[name].copy_(value)
        return state

    def quantise(self, parameter: nn.Parameter, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from bitsandbytes.functional import quantize_blockwise

        state = self._empty(parameter)
        for moment, value in values.items():
            scales, table, _ = _MOMENTS[moment]
            if state[moment].dtype != torch.uint8:
                state[moment].copy_(value)
                continue
            codes, made = quantize_blockwise(value.to(parameter.device), code=state[table], blocksize=_BLOCK)
            state[moment].copy_(codes.view_as(state[moment]))
            state[scales].copy_(made.absmax)
        return state

    def _empty(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state that the library itself makes before the first step."""
        at = [
            (g, i) for g, group in enumerate(self.optimizer.param_groups)
            for i, p in enumerate(group["params"]) if p is parameter
        ]  # fmt: skip
        (group, index), groups = at[0], self.optimizer.param_groups
        self.optimizer.state[parameter] = {}
        self.optimizer.init_state(groups[group], parameter, group, index)
        found = self.optimizer.state.pop(parameter)
        return {name: value for name, value in found.items() if name != "step"}

    def _table(self, name: str, device: torch.device) -> Tensor:
        return self.optimizer.name2qmap[name].to(device)
