"""Pipeline parallelism: schedule, number of stages, and the options of each stage."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.batch import BatchSplit
from paceline.plan.mesh import Mesh
from paceline.plan.strategies.fsdp.resolved_options import PARALLELISM, fsdp_engine
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategy_options import PipelineOptions

#: Schedules that need more than one stage on each rank, with the number they take when none is given.
MULTI_STAGE = {"interleaved": 2, "zero_bubble": 2, "zbv": 2}


def pipeline_engine(job: Job, mesh: Mesh, batch: BatchSplit, findings: Findings) -> PipelineOptions:
    """Return ``Plan.engine`` of a pipeline.

    The schedule's micro-batches are those of gradient accumulation.
    """
    schedule = job.parallelism.pp_schedule
    stages = job.parallelism.pp_stages_per_rank or MULTI_STAGE.get(schedule, 1)
    if mesh.pp == 1:
        findings.refuse(
            codes.PAR_PP_SIZE,
            "a pipeline needs at least two stages",
            f"{PARALLELISM}.pp_size",
            "pp_size: 1",
            f"set pp_size: {min(2, job.world_size)} or more, or distributed_strategy: fsdp",
        )
    if job.shape is not None and not job.shape.family.stages:
        why = "its stages would compute other results than the complete model"
        findings.problems.append(no_stages(f"model_type {job.shape.model_type}: {why}"))
    _check_stages(schedule, stages, findings)
    _check_layers(job, mesh, stages, findings)
    bubble = (mesh.pp - 1) / (mesh.pp - 1 + batch.accumulation * (stages if schedule == "interleaved" else 1))
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
            codes.PAR_PP_STAGES,
            "the V schedule has two stages per process: one on the way down, one on the way up",
            where,
            str(stages),
            "2",
        )
    if schedule not in MULTI_STAGE and stages > 1:
        findings.refuse(
            codes.PAR_PP_STAGES,
            f"the schedule {schedule} has one stage per process",
            where,
            str(stages),
            "1, or set pp_schedule: interleaved",
        )


def _check_layers(job: Job, mesh: Mesh, stages: int, findings: Findings) -> None:
    if job.shape is None or job.shape.layers >= mesh.pp * stages:
        return
    findings.refuse(
        codes.PAR_PP_LAYERS,
        f"{job.shape.layers} layers cannot be split into {mesh.pp * stages} stages",
        f"{PARALLELISM}.pp_size",
        f"pp_size: {mesh.pp} × {stages} stage(s) per process",
        f"at most {job.shape.layers} stages in total",
    )


def no_stages(found: str) -> Diagnostic:
    """Return the refusal of a model class that has no pipeline stages; ``found``: the class and why."""
    return codes.MODELS_NO_STAGES(f"{PARALLELISM}.pp_size", found)
