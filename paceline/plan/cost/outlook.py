"""Beyond a step: time to finish, what checkpoints take on disk, what offloading takes of a node's memory and disks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from paceline.core.units import human_bytes, human_seconds
from paceline.plan.cost.search import Ask, Candidate, host_bytes
from paceline.plan.cost.work import Work

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
        said = []
        if self.steps:
            rests = f" ({self.basis})" if self.basis else ""
            said.append(f"{self.steps:,} steps in {human_seconds(self.seconds)}{rests}")
        elif self.basis:
            said.append(self.basis)
        many = f" × {self.kept} = {human_bytes(self.disk_bytes)}" if self.kept > 1 else ""
        said.append(f"a checkpoint takes {human_bytes(self.checkpoint_bytes)} of disk{many}")
        if self.host_bytes_a_node:
            said.append(f"offload takes {human_bytes(self.host_bytes_a_node)} of host memory a node")
        if self.nvme_bytes_a_node:
            said.append(f"offload takes {human_bytes(self.nvme_bytes_a_node)} of NVMe a node")
        return "; ".join(said)


def outlook(candidate: Candidate, ask: Ask) -> Outlook:
    """What follows from a layout for a whole training."""
    work, nvme = candidate.work, ask.nvme
    steps = ask.steps or (math.ceil(ask.tokens / work.step_tokens) if ask.tokens else 0)
    each = SAVED * trained_parameters(work) * (1 + work.trained_models)
    host, disk = host_bytes(work), 0.0
    if nvme and host:
        s = work.storage
        optimizer = host * s.optimizer / (s.optimizer + (s.weight + s.gradient if work.offload == "all" else 0.0))
        disk = optimizer * ("optimizer" in nvme) + (host - optimizer) * ("parameters" in nvme)
    return Outlook(
        steps=steps,
        seconds=steps * candidate.step * (ask.row_tokens / ask.seq_len if ask.row_tokens else 1.0),
        checkpoint_bytes=round(each),
        kept=ask.kept,
        disk_bytes=round(each * ask.kept),
        host_bytes_a_node=round(host - disk),
        nvme_bytes_a_node=round(disk),
        basis=ask.basis,
    )


def trained_parameters(work: Work) -> float:
    """Of one trained model: all, or the adapter's and what is trained whole beside it."""
    if work.adapter is not None:
        return float(work.adapter.parameters + work.adapter.full_modules)
    return float(work.shape.num_parameters)
