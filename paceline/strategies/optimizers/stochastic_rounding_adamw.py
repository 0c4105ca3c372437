"""AdamW over weights that are kept in bfloat16 alone: each update is rounded stochastically."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.models.attention import kernel_choice
from paceline.models.triton_kernels import operators, reference
from paceline.runtime.device.device import device_capability
from paceline.strategies.optimizers.galore_adamw import Groups, StepsOneByOne, Values

if TYPE_CHECKING:
    from paceline.strategies.fsdp.state import Block

_MASK = (1 << 64) - 1


class RoundedAdamW(StepsOneByOne):
    """AdamW (Loshchilov and Hutter 2019) in fp32 with fp32 moments. The new weight is rounded to one of its
    two bfloat16 neighbours, at random, so that its expectation is exact (Zamirai et al. 2020,
    arXiv:2010.06192). Rounding to the nearest would lose an update of less than 1/512 of a weight.

    The noise is a function of ``seed``, the parameter's index, its step and the element's index in the whole
    tensor (``first``: the start of a rank's shard). So it is the same on every mesh and after a resume.
    """

    def __init__(
        self,
        params: Groups,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.seed = seed
        self.first: Mapping[nn.Parameter, int] = {}
        every = [p for group in self.param_groups for p in group["params"]]
        self._places = {p: index for index, p in enumerate(every)}

    def take_blocks(self, blocks: Iterable[Block]) -> None:
        """Take note of where each shard begins in its whole tensor."""
        self.first = {b.local: b.offsets[0] * math.prod(b.global_shape[1:]) for b in blocks if b.global_shape}

    def step_one(self, parameter: nn.Parameter, group: Values) -> None:
        """Step one parameter that has a gradient."""
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq"):
                # In bf16 (8 bits of mantissa) a second moment with beta 0.999 would stop moving.
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        state["step"] += 1
        step, betas = int(state["step"]), group["betas"]
        assert isinstance(betas, (tuple, list)) and parameter.grad is not None
        rate, decay = float(str(group["lr"])), float(str(group["weight_decay"]))
        numbers = [
            1 - rate * decay,
            rate / (1 - betas[0] ** step),
            (1 - betas[1] ** step) ** -0.5,
            betas[0],
            betas[1],
            float(str(group["eps"])),
        ]
        if not parameter.numel():  # a rank's empty shard
            return
        keys = noise_keys(self.seed, self._places[parameter], step)
        device = parameter.device
        on_device = device_capability(device) is not None and not kernel_choice.triton_missing(device)
        kernel = operators if on_device else reference
        kernel.adamw_rounded(
            parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"], numbers, keys,
            self.first.get(parameter, 0),
        )  # fmt: skip


def noise_keys(seed: int, index: int, step: int) -> list[int]:
    """Return two signed 32-bit numbers (SplitMix64 of Steele et al. 2014)."""
    value = 0
    for part in (seed, index, step):
        # The constants are SplitMix64's; Python's integers need the mask to wrap at 64 bits.
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    # signed, as the kernels take int32
    return [half - (1 << 32) if half >> 31 else half for half in (value >> 32, value & 0xFFFFFFFF)]
