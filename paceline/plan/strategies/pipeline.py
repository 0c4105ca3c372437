"""Pipeline parallelism: the spec, its schedule, and the options of each stage, sharded like FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.registries.optimizers import StateSplit
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.mesh import PARALLELISM, BatchSplit, Mesh
from paceline.plan.plan import ModelStates, Plan, Precision
from paceline.plan.strategies.fsdp import SHARDED
from paceline.plan.strategies.fsdp_options import fsdp_engine, fsdp_mesh
from paceline.plan.strategies.spec import TORCH_FORM, Findings, Job, StrategySpec
from paceline.plan.strategy_options import EngineOptions, PipelineOptions
from paceline.plan.workload.local_tensors import (
    LocalTensor,
    StagesOfRank,
    own_stages,
    sharded_states,
    tp_share,
    whole_states,
)
from paceline.plan.workload.startup_memory import FIRST, HOST, LoadingSpec
from paceline.plan.workload.step_spec import WHOLE, StrategyLayout


@dataclass(frozen=True)
class PipelineSpec(StrategySpec):
    """Micro-batches pass from stage to stage."""

    def lacks(self, axis: str) -> bool:
        return axis == "cp"

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return fsdp_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        return pipeline_engine(job, mesh, batch, findings)

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        return FIRST if not isinstance(engine, PipelineOptions) or engine.fsdp.meta_start else HOST

    def own_stages(self, plan: Plan, rank: int) -> StagesOfRank | None:
        return own_stages(PipelineOptions.own(plan.engine), plan.mesh, plan.mesh.coordinates(rank).pp)

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        fsdp, mesh = PipelineOptions.own(plan.engine).fsdp, plan.mesh
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
            stages_a_rank=PipelineOptions.own(engine).stages_a_rank,
        )


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


#: Schedules that need more than one stage on each rank, with the number they take when none is given.
MULTI_STAGE = {"interleaved": 2, "zero_bubble": 2, "zbv": 2}


def pipeline_engine(job: Job, mesh: Mesh, batch: BatchSplit, findings: Findings) -> PipelineOptions:
    """Return ``Plan.engine`` of a pipeline.

    The schedule's micro-batches are those of gradient accumulation.
    """
    schedule = job.parallelism.pp_schedule
    stages = job.parallelism.pp_stages_per_rank or MULTI_STAGE.get(schedule, 1)
    if job.axis("pp") == 1:
        findings.refuse(
            codes.PAR_PP_SIZE(
                f"{PARALLELISM}.pp_size",
                "pp_size: 1",
                processes=""
                if job.world_size > 1
                else " with --nproc 2"
                + ("" if kind_of(job.hardware.device).backend else " and use_cpu: true"),
            )
        )
    if job.shape is not None and not job.shape.family.stages:
        why = "its stages would compute other results than the complete model"
        findings.refuse(no_stages(f"model_type {job.shape.model_type}: {why}"))
    _check_stages(schedule, stages, findings)
    _check_layers(job, mesh, stages, findings)
    interleaved = stages if schedule == "interleaved" else 1
    bubble = (mesh.pp - 1) / max(1, mesh.pp - 1 + batch.accumulation * interleaved)  # a rule refuses 0
    idle = (
        f"about {bubble:.0%} of a step idle"
        if schedule in ("1f1b", "gpipe", "interleaved")
        else "weight gradients fill the idle time"
    )
    findings.explain(
        "pipeline",
        f"{schedule}, {mesh.pp * stages} stages on {mesh.pp} ranks",
        f"{batch.accumulation} micro-batches per step (gradient_accumulation_steps): {idle}; the"
        " micro-batches of a step are padded to one shape",
    )
    return PipelineOptions(schedule, stages, fsdp_engine(job, mesh, findings))


def _check_stages(schedule: str, stages: int, findings: Findings) -> None:
    where = f"{PARALLELISM}.pp_stages_per_rank"
    if schedule == "zbv" and stages != 2:
        findings.refuse(
            codes.PAR_PP_STAGES(
                "the V schedule has two stages per process: one on the way down, one on the way up",
                where,
                str(stages),
                "2",
            )
        )
    if schedule not in MULTI_STAGE and stages > 1:
        findings.refuse(
            codes.PAR_PP_STAGES(
                f"the schedule {schedule} has one stage per process",
                where,
                str(stages),
                "1, or set pp_schedule: interleaved",
            )
        )


def _check_layers(job: Job, mesh: Mesh, stages: int, findings: Findings) -> None:
    if job.shape is None or job.shape.layers >= mesh.pp * stages:
        return
    findings.refuse(
        codes.PAR_PP_LAYERS(
            f"{PARALLELISM}.pp_size",
            f"pp_size: {mesh.pp} × {stages} stage(s) per process",
            layers=job.shape.layers,
            stages=mesh.pp * stages,
        )
    )


def no_stages(found: str) -> Diagnostic:
    """Return the refusal of a model class that has no pipeline stages; ``found``: the class and why."""
    return codes.MODELS_NO_STAGES(f"{PARALLELISM}.pp_size", found)
