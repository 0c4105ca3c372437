"""DDP with sharded optimizer state: torch's ``ZeroRedundancyOptimizer``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import StateSplit
from paceline.plan.cost.layout import WHOLE, StrategyLayout
from paceline.plan.cost.pieces import Piece
from paceline.plan.cost.starts import ARRIVES
from paceline.plan.cost.states import group_of, piece_counters, piece_moments
from paceline.plan.mesh import Mesh
from paceline.plan.parts import ModelStates
from paceline.plan.plan import Plan
from paceline.plan.strategies.base import Simulated
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.options import EngineOptions
from paceline.plan.strategies.replicated import DDP, Averaged
from paceline.plan.strategies.state_form import TORCH


@dataclass(frozen=True)
class ZeroRedundancySpec(Averaged):
    """Gradients are all-reduced; each rank updates some parameters and broadcasts them."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return Mesh(dp_shard=job.world_size)

    def states(self, plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates | None:
        whole = super().states(plan, pieces, rank)
        own = [p for p, keeper in _keepers(pieces, plan) if keeper == rank]
        return whole and replace(
            whole,
            optimizer=sum(piece_moments(p, plan.optimizer) for p in own),
            counters=sum(piece_counters(p, plan.optimizer) for p in own),
        )

    def layouts(self) -> tuple[StrategyLayout, ...]:
        storage = replace(WHOLE, sent=4.0)
        return (StrategyLayout(self.name, self.name, 1, storage, packed=True, start=ARRIVES),)

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        return self.layouts()[0]


def _keepers(pieces: Sequence[Piece], plan: Plan) -> list[tuple[Piece, int]]:
    """Return which rank updates each trained tensor, as ``_partition_parameters`` of torch 2.13 assigns them.

    Per parameter group (Muon's, with weight decay, without), largest tensors first, each unsplit to the rank
    with the fewest elements so far. A rank may get none.
    """
    load: list[int] = [0] * plan.world_size
    found: list[tuple[Piece, int]] = []
    for number in range(3):
        group = [p for p in pieces if p.trained and group_of(p, plan.optimizer) == number]
        for piece in sorted(group, key=lambda p: -p.numel):
            rank = load.index(min(load))
            load[rank] += piece.numel
            found.append((piece, rank))
    return found


ZERO_REDUNDANCY = ZeroRedundancySpec(
    "zero_redundancy",
    axes=frozenset({"dp_shard"}),
    training_keys=DDP.training_keys | {"parameters_as_bucket_view"},
    alone=DDP.alone,
    state_split=StateSplit.TENSORS,
    state_form=TORCH,
    gradient_buffers=True,
    simulated=Simulated.MODULE,
    not_simulated=(
        "DDP's reducer reads real memory, and the optimizer differs on each rank: both are computed"
        " by formula"
    ),
)
