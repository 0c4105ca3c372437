"""Stages of layers, each of them parallelised as FSDP's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.plan.batch import BatchSplit
from paceline.plan.engine import Findings, Job
from paceline.plan.engine_fsdp import fsdp_mesh
from paceline.plan.engine_pipeline import pipeline_engine
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Precision
from paceline.plan.starts import HOST, Start
from paceline.plan.state_form import TORCH
from paceline.plan.strategies.base import StrategySpec


@dataclass(frozen=True)
class Pipeline(StrategySpec):
    """Micro-batches pass from stage to stage."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return fsdp_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> dict[str, Any]:
        return pipeline_engine(job, mesh, batch, findings)

    def start(self, engine: Mapping[str, Any]) -> Start | None:
        return HOST


PIPELINE = Pipeline(
    "pipeline", sections=frozenset({"fsdp"}), whole_modules=False, whole_rows=False, stages=True, loss_scale=False,
    quantised_base=False, state_form=TORCH,
)  # fmt: skip
