"""Strategies that are wrong on purpose. The program or the suite must say so of each."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import nn

from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.protocols.window import StepOutcome
from paceline.strategies.model_handle import Handle
from paceline.strategies.strategy import Strategy


class Forgetful(Strategy):
    """Each rank trains on its own rows."""

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        return root


class Averaging(Strategy):
    """The mean over ranks, rightly."""

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        return root

    def order(self, parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
        """In which order they travel."""
        return parameters

    def finish(self, handle: Handle, *, lr: float, max_grad_norm: float | None) -> StepOutcome:
        for parameter in self.order(handle.parameters()):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(self.world.world_size)
        return super().finish(handle, lr=lr, max_grad_norm=max_grad_norm)


class Swapped(Averaging):
    """Two all-reduces of equal shape in the opposite order on rank 1: gloo pairs them up and says nothing."""

    def order(self, parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
        if self.world.rank != 1:
            return parameters
        swapped = list(parameters)
        first = next(i for i, p in enumerate(swapped) if any(p.shape == q.shape for q in swapped[i + 1 :]))
        second = next(j for j in range(first + 1, len(swapped)) if swapped[j].shape == swapped[first].shape)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        return swapped


class Halved(Averaging):
    """The same wrong mean on every rank."""

    def order(self, parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
        """As they come, each already halved."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(self.world.world_size)
            yield parameter
