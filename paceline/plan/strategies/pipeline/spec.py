"""The pipeline's spec: stages of layers, each sharded like FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.registries.optimizers import StateSplit
from paceline.plan.batch import BatchSplit
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Plan, Precision
from paceline.plan.plan_sections import ModelStates
from paceline.plan.strategies.checkpoint_compatibility import TORCH_FORM
from paceline.plan.strategies.fsdp.resolved_options import fsdp_mesh
from paceline.plan.strategies.fsdp.spec import SHARDED
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.pipeline.options import pipeline_engine
from paceline.plan.strategies.spec import StrategySpec
from paceline.plan.strategy_options import EngineOptions, PipelineOptions
from paceline.plan.workload.local_tensors import OwnStages, Piece, own_stages, tp_share
from paceline.plan.workload.startup_memory import FIRST, HOST, LoadingSpec
from paceline.plan.workload.state_bytes import sharded_states, whole_states
from paceline.plan.workload.strategy_layout import WHOLE, StrategyLayout


@dataclass(frozen=True)
class PipelineSpec(StrategySpec):
    """Micro-batches pass from stage to stage."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return fsdp_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        return pipeline_engine(job, mesh, batch, findings)

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        return FIRST if not isinstance(engine, PipelineOptions) or engine.fsdp.meta_start else HOST

    def own_stages(self, plan: Plan, rank: int) -> OwnStages | None:
        return own_stages(_own(plan.engine), plan.mesh, plan.mesh.coordinates(rank).pp)

    def states(self, plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates | None:
        fsdp, mesh = _own(plan.engine).fsdp, plan.mesh
        cut = [tp_share(p, mesh.tp, vocabulary=fsdp.loss_parallel) for p in pieces]
        return (
            sharded_states(plan, cut, rank) if mesh.dp_shard > 1 or mesh.tp > 1 else whole_states(plan, cut)
        )

    def layouts(self) -> tuple[StrategyLayout, ...]:
        return (
            StrategyLayout("pipeline", self.name, pp=True, start=FIRST),
            StrategyLayout("pipeline + fsdp", self.name, 3, SHARDED, pp=True, start=FIRST),
            StrategyLayout("pipeline + fsdp + tp", self.name, 3, SHARDED, pp=True, tp=True, start=FIRST),
        )

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        zero, storage = (3, SHARDED) if mesh.dp_shard > 1 else (0, WHOLE)
        return StrategyLayout(
            self.name,
            self.name,
            zero,
            storage,
            pp=True,
            start=self.start(engine),
            stages_a_rank=_own(engine).stages_a_rank,
        )


def _own(engine: EngineOptions) -> PipelineOptions:
    assert isinstance(engine, PipelineOptions)
    return engine


PIPELINE = PipelineSpec(
    "pipeline",
    sections=frozenset({"fsdp"}),
    whole_modules=False,
    not_compiled="a pipeline's schedule runs the layers of its stages itself",
    state_split=StateSplit.SHARDS,
    whole_rows=False,
    stages=True,
    loss_scale=False,
    quantised_base=False,
    state_form=TORCH_FORM,
    not_simulated="a pipeline schedule needs the outputs of the other stages",
)
