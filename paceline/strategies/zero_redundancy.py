"""``ZeroRedundancyOptimizer`` under DDP: whole weights and gradients on every rank, sharded optimizer (ZeRO-1
of arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from paceline.protocols.model import RootModule
from paceline.protocols.optimizer import OptimizerSpec
from paceline.protocols.shard import Shard, ShardReader
from paceline.strategies import replicated_state
from paceline.strategies.broadcast_read import ReadOnce
from paceline.strategies.ddp import DDP
from paceline.strategies.model_handle import Handle
from paceline.strategies.optimizers.build import recipe_of


class ZeroRedundancy(DDP):
    """Each rank steps its own whole parameters, with any optimizer, and broadcasts them: bitwise equal to
    DDP, as all ranks clip by the same norm.

    Not used: ``overlap_with_ddp`` (it skips the first steps and cannot clip), and torch's
    ``consolidate_state_dict`` (it pickles); instead each rank saves the moments it keeps, under plain names.
    """

    def _make_optimizer(self, spec: OptimizerSpec, root: RootModule) -> torch.optim.Optimizer:
        if self.world.world_size == 1:
            return super()._make_optimizer(spec, root)
        recipe = recipe_of(spec, root.plain_named_parameters())
        made = ZeroRedundancyOptimizer(
            recipe.groups,
            optimizer_class=recipe.cls,
            parameters_as_bucket_view=self.ddp_options.parameters_as_bucket_view,
            **recipe.kwargs,
        )
        made.state = made.optim.state  # its own state stays empty; moments are in the local optimizer
        return made

    def export_state(self, handle: Handle) -> Iterator[Shard]:
        """Yield this rank's parameters with their moments, and its part of the frozen ones."""
        return replicated_state.export_state(handle, self.world.rank, self.world.world_size, _keepers(handle))

    def import_state(self, handle: Handle, reader: ShardReader) -> None:
        """Load all weights, and the moments of this rank's parameters."""
        once = ReadOnce(reader, self.world)
        replicated_state.import_state(handle, once, self.world.rank, _keepers(handle), of_moments=reader)


def _keepers(handle: Handle) -> dict[str, int]:
    """Return trained parameter → the rank that steps it."""
    optimizer = handle.optimizer
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        return {}
    named = handle.root.plain_named_parameters()
    ranks: dict[nn.Parameter, int] = optimizer._param_to_rank  # type: ignore[attr-defined]
    return {name: ranks[p] for name, p in named if p.requires_grad}
