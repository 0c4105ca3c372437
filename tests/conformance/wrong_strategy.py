"""Strategies that are wrong on purpose. The program or the suite must say so of each."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn

from paceline.seam.roles import Role
from paceline.strategies.base import Strategy
from paceline.strategies.handle import Handle


class Forgetful(Strategy):
    """Each rank trains on its own rows."""

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        return root


class Averaging(Strategy):
    """The mean over ranks, rightly."""

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        return root

    def order(self, parameters: list[nn.Parameter]) -> Iterable[nn.Parameter]:
        """In which order they travel."""
        return parameters

    def grad_norm(self, handle: Handle) -> Tensor:
        for parameter in self.order(handle.parameters()):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(self.world.world_size)
        return super().grad_norm(handle)


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

    def grad_norm(self, handle: Handle) -> Tensor:
        norm = super().grad_norm(handle)
        for parameter in handle.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.world.world_size)
        return norm / self.world.world_size
