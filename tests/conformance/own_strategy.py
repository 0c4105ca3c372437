"""A strategy of a user's own, as docs/strategies.md shows it: no engine, gradients averaged by hand after the last micro-batch."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from paceline.seam.roles import Role
from paceline.strategies.base import Strategy
from paceline.strategies.handle import Handle


class EveryRankSteps(Strategy):
    """Each rank holds the whole model; before the norm is taken, gradients are averaged over all ranks."""

    def wrap(self, role: Role, root: nn.Module) -> nn.Module:
        return root

    def grad_norm(self, handle: Handle) -> Tensor:
        if self.world.world_size > 1:
            for parameter in handle.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad.div_(self.world.world_size)
        return super().grad_norm(handle)


class Forgetful(EveryRankSteps):
    """Wrong on purpose: the ranks never meet. The suite must say so."""

    def grad_norm(self, handle: Handle) -> Tensor:
        return Strategy.grad_norm(self, handle)
