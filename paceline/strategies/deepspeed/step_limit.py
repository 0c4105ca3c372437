"""A step that DeepSpeed measures, clips and makes in one call, left out where its norm is above a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.models.module_tensors import replaced
from paceline.protocols.window import StepLimit
from paceline.strategies.deepspeed.partition_views import is_partitioned

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine_types import Engine


class Measured:
    """The norm that the engine's optimizer measured in its step, float64, and whether it was refused."""

    def __init__(self, limit: StepLimit, device: torch.device) -> None:
        self._limit, self._device = limit, device
        self.norm = torch.zeros((), dtype=torch.float64, device=device)
        self.refused = torch.zeros((), dtype=torch.bool, device=device)

    def refuses(self, norm: Tensor) -> bool:
        """Note the norm; every rank has the same."""
        self.norm = norm.to(self._device, torch.float64)
        self.refused = self._limit.refuses(self.norm)
        return bool(self.refused)


@contextmanager
def limited(engine: Engine, limit: StepLimit, device: torch.device) -> Iterator[Measured]:
    """Inside the context ``engine.step()`` takes a norm that ``limit`` refuses for an overflow: DeepSpeed
    then clears its gradients and changes nothing.

    Without a scaler an overflow has no other effect; with one the loss scale would be halved, so that rules
    refuse ``training.on_spike: skip`` under fp16.
    """
    optimizer, measured = engine.optimizer, Measured(limit, device)
    if is_partitioned(optimizer):
        of_groups = optimizer._get_norm_groups

        def groups() -> Sequence[Tensor]:
            norms = [torch.as_tensor(norm, device=device) for norm in of_groups()]
            total = torch.linalg.vector_norm(torch.stack([norm.double() for norm in norms]))
            refused = measured.refuses(total / optimizer.loss_scale)
            return [torch.full_like(norm, torch.inf) for norm in norms] if refused else norms

        with replaced(optimizer, _get_norm_groups=groups):
            yield measured
        return
    whole_norm: Callable[[], Tensor] = optimizer.scaled_global_norm

    def norm() -> Tensor:
        total = torch.as_tensor(whole_norm(), device=device)
        refused = measured.refuses(total.double() / optimizer.loss_scale)
        return torch.full_like(total, torch.inf) if refused else total

    with replaced(optimizer, scaled_global_norm=norm):
        yield measured
