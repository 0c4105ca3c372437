"""The mesh and the strategy's own resolved options (``Plan.engine``), with a decision for everything asked: granted, translated, or off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.batch import BatchSplit
from paceline.plan.hardware import Hardware
from paceline.plan.mesh import Mesh, mesh_for
from paceline.plan.plan import Decision, Precision
from paceline.plan.shape import ModelShape

DEEPSPEED = frozenset({"deepspeed", "zero1", "zero2", "zero3"})


@dataclass(frozen=True)
class Job:
    """What the engines may know: the config's values, the machine, the processes."""

    training: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    hardware: Hardware
    world_size: int
    num_nodes: int
    shape: ModelShape | None

    @property
    def ranks_per_node(self) -> int:
        """Processes on each node."""
        return self.world_size // self.num_nodes

    @property
    def parallelism(self) -> dict[str, Any]:
        """``training.parallelism`` as a mapping; empty when it was not given."""
        return dict(self.training.get("parallelism") or {})

    def axis(self, name: str) -> int:
        """Size of a mesh axis as given, else 1."""
        return int(self.parallelism.get(f"{name}_size") or 1)


@dataclass
class Findings:
    """What reading an engine's options yields beside the options: decisions for the plan, problems that stop a start."""

    decisions: list[Decision] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)

    def say(self, subject: str, choice: str, reason: str, granted: bool = True) -> None:
        """One decision."""
        self.decisions.append(Decision(subject, choice, reason, granted))

    def refuse(self, code: str, what: str, where: str, found: str, hint: str) -> None:
        """One problem."""
        self.problems.append(Diagnostic(code, what, where, found, hint))

    def raise_if_refused(self) -> None:
        """Raises ConfigError with every problem at once."""
        if self.problems:
            raise ConfigError(*self.problems)


def resolve_mesh(strategy: str, job: Job) -> tuple[Mesh, tuple[Decision, ...]]:
    """The mesh of ``strategy`` and what there is to say about it. Raises ConfigError with every reason against it."""
    from paceline.plan.engine_deepspeed import deepspeed_mesh
    from paceline.plan.engine_fsdp import fsdp_mesh

    findings = Findings()
    if strategy in ("fsdp", "pipeline"):
        mesh = fsdp_mesh(strategy, job, findings)
    elif strategy in DEEPSPEED:
        mesh = deepspeed_mesh(strategy, job, findings)
    else:
        mesh = mesh_for(job.parallelism, job.world_size)
    findings.raise_if_refused()
    return mesh, tuple(findings.decisions)


def resolve_engine(
    strategy: str, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision
) -> tuple[dict[str, Any], tuple[Decision, ...]]:
    """``Plan.engine`` of ``strategy`` and its decisions. Raises ConfigError with every reason against the options."""
    from paceline.plan.engine_deepspeed import deepspeed_engine
    from paceline.plan.engine_fsdp import fsdp_engine
    from paceline.plan.engine_pipeline import pipeline_engine

    findings = Findings()
    engine: dict[str, Any] = {}
    if strategy == "fsdp":
        engine = fsdp_engine(job, mesh, findings)
    elif strategy == "pipeline":
        engine = pipeline_engine(job, mesh, batch, findings)
    elif strategy in DEEPSPEED:
        engine = deepspeed_engine(strategy, job, mesh, batch, precision, findings)
    elif strategy == "data_parallel":
        engine = {"devices": max(1, job.hardware.num_devices) if job.hardware.device == "cuda" else 1}
        findings.say(
            "data_parallel",
            f"{engine['devices']} device(s) of one process",
            "nn.DataParallel copies the model in every step and gathers on the first device; ddp is faster on the same devices",
        )
    findings.raise_if_refused()
    return engine, tuple(findings.decisions)
