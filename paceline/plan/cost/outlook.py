"""Beyond a step: time to finish, what checkpoints take on disk, what offloading takes of a node's memory and disks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from paceline.core.units import human_bytes, human_seconds
from paceline.plan.cost.search import Candidate, SearchSpec, host_bytes
from paceline.plan.cost.work import StepSpec

SAVED = (
    12.0  # bytes a trained parameter: fp32 weight and two moments (checkpoint/: plain names, any strategy reads them)
)


@dataclass(frozen=True)
class Outlook:
    """``steps`` and ``seconds`` are 0 where the length of the training is not known, ``basis`` says what they rest on; disk bytes are those of all ranks together."""

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
        """One sentence."""
        parts = []
        if self.steps:
            rests = f" ({self.basis})" if self.basis else ""
            parts.append(f"{self.steps:,} steps in {human_seconds(self.seconds)}{rests}")
        elif self.basis:
            parts.append(self.basis)
        many = f" × {self.kept} = {human_bytes(self.disk_bytes)}" if self.kept > 1 else ""
        parts.append(f"a checkpoint takes {human_bytes(self.checkpoint_bytes)} of disk{many}")
        if self.host_bytes_a_node:
            parts.append(f"offload takes {human_bytes(self.host_bytes_a_node)} of host memory a node")
        if self.nvme_bytes_a_node:
            parts.append(f"offload takes {human_bytes(self.nvme_bytes_a_node)} of NVMe a node")
        return "; ".join(parts)


def outlook(candidate: Candidate, spec: SearchSpec) -> Outlook:
    """What follows from a layout for a whole training."""
    work, nvme = candidate.work, spec.nvme
    steps = spec.steps or (math.ceil(spec.tokens / work.step_tokens) if spec.tokens else 0)
    each = SAVED * trained_parameters(work) * (1 + work.trained_models)
    host, disk = host_bytes(work), 0.0
    if nvme and host:
        s = work.storage
        optimizer = host * s.optimizer / (s.optimizer + (s.weight + s.gradient if work.offload == "all" else 0.0))
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
    """Of one trained model: all, or the adapter's and what is trained whole beside it."""
    if work.adapter is not None:
        return float(work.adapter.parameters + work.adapter.full_modules)
    return float(work.shape.num_parameters)
