"""Whole copies of the model: one process, the devices of one process, or one copy a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.plan.batch import BatchSplit
from paceline.plan.engine import Findings, Job
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Precision
from paceline.plan.starts import CARD, Start
from paceline.plan.state_form import TORCH
from paceline.plan.strategies.base import StrategySpec


@dataclass(frozen=True)
class Replicated(StrategySpec):
    """Every process moves the whole model to its card."""

    def start(self, engine: Mapping[str, Any]) -> Start | None:
        return CARD


@dataclass(frozen=True)
class Threads(Replicated):
    """``nn.DataParallel``: the model is copied to every device in each step."""

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> dict[str, Any]:
        devices = max(1, job.hardware.num_devices) if job.hardware.device == "cuda" else 1
        findings.say(
            "data_parallel",
            f"{devices} device(s) of one process",
            "nn.DataParallel copies the model in every step and gathers on the first device; ddp is faster on the same devices",
        )
        return {"devices": devices}


SINGLE = Replicated("single", axes=frozenset(), one_process=True, state_form=TORCH)
DATA_PARALLEL = Threads(
    "data_parallel", axes=frozenset(), one_process=True, multi_device=True, whole_rows=False, predicted=False,
    quantised_base=False, state_form=TORCH,
)  # fmt: skip
DDP = Replicated("ddp", axes=frozenset({"dp_replicate"}), sections=frozenset({"ddp"}), alone="single", state_form=TORCH)
