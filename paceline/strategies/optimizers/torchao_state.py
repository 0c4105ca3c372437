"""torchao's 8- and 4-bit moments: tensor subclasses of codes, a scale per block, and a lookup table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

_CODES, _SCALE = ".codes", ".scale"
_SIGNED = "exp_avg"  # the first moment; squares have no sign


class Quantised(Protocol):
    """What the codec uses of ``OptimState8bit`` and ``OptimState4bit``."""

    codes: Tensor
    scale: Tensor

    def dequantize(self, output_dtype: torch.dtype) -> Tensor: ...


class AoOptimizer(Protocol):
    """What the codec uses of ``torchao.optim.adam._AdamBase``."""

    param_groups: list[dict[str, list[nn.Parameter]]]

    def _new_buffer(self, p: Tensor, signed: bool) -> Tensor: ...

    def _subclass_zeros(self, p: Tensor, signed: bool, block_size: int) -> Quantised: ...


class TorchAO:
    """The codec of ``torchao.optim`` (see ``quantised_state.Codec``)."""

    def __init__(self, optimizer: AoOptimizer) -> None:
        self.optimizer = optimizer

    def parts(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, value in state.items():
            if hasattr(value, "codes") and hasattr(value, "scale"):
                found |= {name + _CODES: value.codes, name + _SCALE: value.scale}
            elif isinstance(value, Tensor) and name != "step":
                found[name] = value
        return found

    def values(self, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
        found = {}
        for name, value in parts.items():
            if name.endswith(_CODES):
                moment, scale = name.removesuffix(_CODES), parts[name.removesuffix(_CODES) + _SCALE]
                block = torch.Size(shape).numel() // scale.numel()
                made = self.optimizer._subclass_zeros(torch.empty(shape), moment == _SIGNED, block)
                made.codes.copy_(value)
                made.scale.copy_(scale)
                found[moment] = made.dequantize(torch.float32).view(shape)
            elif not name.endswith(_SCALE):
                found[name] = value.float()
        return found

    def fill(self, parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in parts.items():
            moment, _, part = name.partition(".")
            (getattr(state[moment], part) if part else state[moment]).copy_(value)
        return state

    def quantise(self, parameter: nn.Parameter, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in values.items():
            state[name].copy_(value.to(parameter.device))
        return state

    def _empty(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        group = next(g for g in self.optimizer.param_groups if any(p is parameter for p in g["params"]))
        moments = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        return {name: self.optimizer._new_buffer(parameter, name == _SIGNED) for name in moments}
