"""``fully_shard`` of torch, with tensor and context parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.plan.batch import BatchSplit
from paceline.plan.engine import Findings, Job
from paceline.plan.engine_fsdp import fsdp_engine, fsdp_mesh
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Precision
from paceline.plan.starts import FIRST, HOST, Start
from paceline.plan.state_form import TORCH
from paceline.plan.strategies.base import StrategySpec


@dataclass(frozen=True)
class Fsdp(StrategySpec):
    """Every rank keeps a part of each layer and gathers the layer when it is computed."""

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        return fsdp_mesh(job, findings)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> dict[str, Any]:
        return fsdp_engine(job, mesh, findings)

    def start(self, engine: Mapping[str, Any]) -> Start | None:
        return FIRST if engine.get("meta_start") else HOST


FSDP = Fsdp(
    "fsdp", axes=frozenset({"dp_replicate", "dp_shard", "cp", "tp"}), sections=frozenset({"fsdp"}), min_processes=2,
    sharding="full_shard",
    shards_weights=True, whole_modules=False, score_axes=frozenset({"tp"}), state_form=TORCH,
)  # fmt: skip
