"""Replicated models: one process, all devices of one process, or one replica per process (DDP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import StateSplit
from paceline.core.json_types import JsonObject
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.plan import ModelStates, Plan, Precision
from paceline.plan.strategies.spec import TORCH_FORM, Findings, Job, Simulated, StrategySpec
from paceline.plan.strategy_options import EngineOptions, ThreadOptions
from paceline.plan.workload.local_tensors import (
    LocalTensor,
    group_of,
    piece_counters,
    piece_moments,
    tp_share,
    whole_states,
)
from paceline.plan.workload.startup_memory import ARRIVES, LoadingSpec
from paceline.plan.workload.step_spec import WHOLE, StepSpec, StrategyLayout


@dataclass(frozen=True)
class ReplicatedSpec(StrategySpec):
    """Every process holds the whole model on its card."""

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        return ARRIVES

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        return whole_states(plan, [tp_share(p, plan.mesh.tp, vocabulary=False) for p in pieces])

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        return StrategyLayout(self.name, self.name, packed=True, start=ARRIVES)

    def settings(self, work: StepSpec, mesh: Mesh) -> JsonObject:
        return {"distributed_strategy": self.alone if self.alone and work.world == 1 else self.name}


@dataclass(frozen=True)
class DdpSpec(ReplicatedSpec):
    """One replica per process; gradients are averaged (all-reduce)."""

    def layouts(self) -> tuple[StrategyLayout, ...]:
        return (StrategyLayout(self.name, self.name, packed=True, start=ARRIVES),)


@dataclass(frozen=True)
class DataParallelSpec(ReplicatedSpec):
    """``nn.DataParallel``: the model is copied to every device in each step."""

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        devices = max(1, job.hardware.num_devices) if is_accelerator(job.hardware.device) else 1
        findings.explain(
            "data_parallel",
            f"{devices} device(s) of one process",
            "nn.DataParallel copies the model in every step and gathers outputs on the first"
            " device; ddp is faster on the same devices",
        )
        return ThreadOptions(devices)

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        return None


SINGLE = ReplicatedSpec(
    "single",
    axes=frozenset(),
    one_process=True,
    bf16_masters=True,
    fp8=True,
    state_form=TORCH_FORM,
    simulated=Simulated.ALL,
)
DATA_PARALLEL = DataParallelSpec(
    "data_parallel",
    axes=frozenset(),
    one_process=True,
    multi_device=True,
    whole_rows=False,
    quantised_base=False,
    state_form=TORCH_FORM,
)
DDP = DdpSpec(
    "ddp",
    axes=frozenset({"dp_replicate"}),
    training_keys=frozenset(
        {"ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"}
    ),
    alone="single",
    bf16_masters=True,
    fp8=True,
    gradient_buffers=True,
    state_form=TORCH_FORM,
    simulated=Simulated.MODULE_AND_STATES,
    not_simulated="DDP's reducer reads real memory: its communication is computed by formula",
)


@dataclass(frozen=True)
class ZeroRedundancySpec(DdpSpec):
    """Gradients are all-reduced; each rank updates some parameters and broadcasts them."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return Mesh(dp_shard=job.world_size)

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        states = super().states(plan, pieces, rank)
        kept = [p for p, keeper in _keepers(pieces, plan) if keeper == rank]
        return states and replace(
            states,
            optimizer=sum(piece_moments(p, plan.optimizer) for p in kept),
            counters=sum(piece_counters(p, plan.optimizer) for p in kept),
        )

    def layouts(self) -> tuple[StrategyLayout, ...]:
        return (
            StrategyLayout(self.name, self.name, 1, replace(WHOLE, sent=4.0), packed=True, start=ARRIVES),
        )

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        return self.layouts()[0]


def _keepers(pieces: Sequence[LocalTensor], plan: Plan) -> list[tuple[LocalTensor, int]]:
    """Return which rank updates each trained tensor, as ``_partition_parameters`` of torch 2.13 assigns them.

    Per parameter group (Muon's, with weight decay, without), largest tensors first, each unsplit to the rank
    with the fewest elements so far. A rank may get none.
    """
    load: list[int] = [0] * plan.world_size
    keepers: list[tuple[LocalTensor, int]] = []
    for number in range(3):
        group = [p for p in pieces if p.trained and group_of(p, plan.optimizer) == number]
        for piece in sorted(group, key=lambda p: -p.numel):
            rank = load.index(min(load))
            load[rank] += piece.numel
            keepers.append((piece, rank))
    return keepers


ZERO_REDUNDANCY = ZeroRedundancySpec(
    "zero_redundancy",
    axes=frozenset({"dp_shard"}),
    training_keys=DDP.training_keys | {"parameters_as_bucket_view"},
    alone=DDP.alone,
    state_split=StateSplit.TENSORS,
    state_form=TORCH_FORM,
    gradient_buffers=True,
    simulated=Simulated.MODULE,
    not_simulated="DDP's reducer reads real memory, and the optimizer differs on each rank: both are computed"
    " by formula",
)
