"""Forecasts for the whole training: duration, checkpoints on disk, offloading's host memory and NVMe."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from paceline.core.units import human_bytes, human_seconds
from paceline.plan.cost.search import Candidate, SearchSpec, host_bytes
from paceline.plan.workload.step_spec import StepSpec


@dataclass(frozen=True)
class Outlook:
    """Forecast for the whole training; ``steps`` and ``seconds`` are 0 if its length is not known.

    ``basis``: what the length is based on. Disk bytes are totals over all ranks.
    """

    steps: int
    seconds: float
    checkpoint_bytes: int
    kept: int
    disk_bytes: int
    host_bytes_a_node: int
    nvme_bytes_a_node: int
    basis: str = ""

    def to_json(self) -> dict[str, float | str]:
        """Plain JSON types."""
        return asdict(self)

    def text(self) -> str:
        """Return the forecast as one sentence."""
        parts = []
        if self.steps:
            rests = f" ({self.basis})" if self.basis else ""
            parts.append(f"{self.steps:,} steps in {human_seconds(self.seconds)}{rests}")
        elif self.basis:
            parts.append(self.basis)
        many = f" × {self.kept} = {human_bytes(self.disk_bytes)}" if self.kept > 1 else ""
        parts.append(f"a checkpoint needs {human_bytes(self.checkpoint_bytes)} of disk{many}")
        if self.host_bytes_a_node:
            parts.append(f"offload needs {human_bytes(self.host_bytes_a_node)} of host memory per node")
        if self.nvme_bytes_a_node:
            parts.append(f"offload needs {human_bytes(self.nvme_bytes_a_node)} of NVMe per node")
        return "; ".join(parts)


def outlook(candidate: Candidate, spec: SearchSpec) -> Outlook:
    """Return the forecast of the whole training with the layout ``candidate``."""
    work, nvme = candidate.work, spec.nvme
    steps = spec.steps or (math.ceil(spec.tokens / work.step_tokens) if spec.tokens else 0)
    each = spec.states.saved * trained_parameters(work) * (1 + work.trained_models)
    host, disk = host_bytes(work), 0.0
    if nvme and host:
        s, offloaded = work.storage, work.storage.optimizer * work.offloaded
        optimizer = host * offloaded / (offloaded + (s.weight + s.gradient if work.offload == "all" else 0.0))
        disk = optimizer * ("optimizer" in nvme) + (host - optimizer) * ("parameters" in nvme)
    return Outlook(
        steps=steps,
        seconds=steps * candidate.step * (spec.row_tokens / spec.seq_len if spec.row_tokens else 1.0),
        checkpoint_bytes=round(each),
        kept=spec.kept,
        disk_bytes=round(each * spec.kept),
        host_bytes_a_node=round(host - disk),
        nvme_bytes_a_node=round(disk),
        basis=spec.basis,
    )


def trained_parameters(work: StepSpec) -> float:
    """Return the parameters of one trained model: all, or adapter and modules trained in full."""
    if work.adapter is not None:
        return float(work.adapter.trained)
    return float(work.shape.num_parameters)
