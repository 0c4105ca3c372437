"""Replicated models: one process, all devices of one process, or one replica per process (DDP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.json_types import JsonObject
from paceline.plan.batch import BatchSplit
from paceline.plan.cost.layout import StrategyLayout
from paceline.plan.cost.pieces import Piece, tp_share
from paceline.plan.cost.starts import ARRIVES, LoadingSpec
from paceline.plan.cost.states import whole_states
from paceline.plan.cost.work import StepSpec
from paceline.plan.hardware.kinds import is_accelerator
from paceline.plan.mesh import Mesh
from paceline.plan.parts import ModelStates
from paceline.plan.plan import Plan, Precision
from paceline.plan.strategies.base import Simulated, StrategySpec
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.options import EngineOptions, ThreadOptions
from paceline.plan.strategies.state_form import TORCH


@dataclass(frozen=True)
class Replicated(StrategySpec):
    """Every process holds the whole model on its card."""

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        return ARRIVES

    def states(self, plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates | None:
        return whole_states(plan, [tp_share(p, plan.mesh.tp, vocabulary=False) for p in pieces])

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        return StrategyLayout(self.name, self.name, packed=True, start=ARRIVES)

    def settings(self, work: StepSpec, mesh: Mesh) -> JsonObject:
        return {"distributed_strategy": self.alone if self.alone and work.world == 1 else self.name}


@dataclass(frozen=True)
class Averaged(Replicated):
    """One replica per process; gradients are averaged (all-reduce)."""

    def layouts(self) -> tuple[StrategyLayout, ...]:
        return (StrategyLayout(self.name, self.name, packed=True, start=ARRIVES),)


@dataclass(frozen=True)
class Threads(Replicated):
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


SINGLE = Replicated(
    "single",
    axes=frozenset(),
    one_process=True,
    bf16_masters=True,
    fp8=True,
    state_form=TORCH,
    simulated=Simulated.ALL,
)
DATA_PARALLEL = Threads(
    "data_parallel",
    axes=frozenset(),
    one_process=True,
    multi_device=True,
    whole_rows=False,
    quantised_base=False,
    state_form=TORCH,
)
DDP = Averaged(
    "ddp",
    axes=frozenset({"dp_replicate"}),
    training_keys=frozenset(
        {"ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"}
    ),
    alone="single",
    bf16_masters=True,
    fp8=True,
    gradient_buffers=True,
    state_form=TORCH,
    simulated=Simulated.MODULE_AND_STATES,
    not_simulated="DDP's reducer reads real memory: its communication is computed by formula",
)
