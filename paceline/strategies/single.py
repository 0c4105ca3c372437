"""One process, one model: the reference for every other strategy."""

from __future__ import annotations

from torch import nn

from paceline.core.errors import ConfigError
from paceline.plan.plan import Plan
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.strategy import Strategy


class Single(Strategy):
    """Training in one process, without communication."""

    def __init__(self, world: World, plan: Plan) -> None:
        if world.world_size != 1:
            raise ConfigError(
                codes.STRATEGY_SINGLE_WORLD("training.distributed_strategy", f"{world.world_size} processes")
            )
        super().__init__(world, plan)

    def wrap(self, role: Role, root: RootModule) -> nn.Module:
        """Return the root itself."""
        return root
