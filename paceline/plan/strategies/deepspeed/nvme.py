"""How much of the offloaded states really goes to NVMe: DeepSpeed keeps tensors under 1 MiB in memory."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.json_types import as_object
from paceline.core.units import human_bytes
from paceline.plan.plan import Decision, Plan
from paceline.plan.strategies.deepspeed.user_config import whole
from paceline.plan.strategy_options import DeepSpeedOptions
from paceline.plan.workload.local_tensors import pieces_of
from paceline.plan.workload.state_bytes import SIZES, moment_bytes

LEAST_MOVED = 2**20  # ``MIN_AIO_BYTES`` of DeepSpeed 0.19.8 (runtime/swap_tensor/utils.py)


def nvme_decisions(plan: Plan) -> Iterator[Decision]:
    """Yield how much of the states meant for NVMe gets there and how much stays in memory."""
    if not isinstance(plan.engine, DeepSpeedOptions):
        return
    zero, places = as_object(plan.engine.config.get("zero_optimization")), plan.engine.places
    requested = [
        part
        for part, place in zip(("offload_optimizer", "offload_param"), places, strict=True)
        if place == "nvme"
    ]
    pieces = None if plan.shape is None else pieces_of(plan.shape, plan.adapter, SIZES[plan.precision.master])
    if not requested or pieces is None:
        return
    ranks, low = plan.mesh.dp_shard * plan.mesh.cp, SIZES[plan.precision.compute]
    block = as_object(plan.engine.config.get("aio")).get("block_size")
    least = max(LEAST_MOVED, block if isinstance(block, int) else 0)
    if "offload_param" in requested:
        parts = [low * -(-p.numel // ranks) for p in pieces]
        yield _decision(
            "offload_param", "weights", parts, least, f"a rank's part of a weight (one of {ranks})"
        )
    if "offload_optimizer" in requested:
        own = sum(-(-p.numel // ranks) for p in pieces if p.trained)
        size = whole(zero, "sub_group_size", SUB_GROUP)
        groups = [size] * (own // size) + [own % size] * bool(own % size)
        copies = 1 + moment_bytes((1,), plan.optimizer, 1)  # masters and moments are separate tensors
        parts = [4 * group for group in groups for _ in range(copies)]
        yield _decision(
            "offload_optimizer", "optimizer states", parts, least, "a sub-group of a rank's states"
        )


def _decision(part: str, name: str, parts: list[int], least: int, of: str) -> Decision:
    there, all_ = sum(n for n in parts if n >= least), sum(parts)
    subject = f"zero_optimization.{part}"
    why = (
        f"DeepSpeed moves nothing under {human_bytes(least)} to a drive, and keeps {of} in memory"
        " if it is smaller"
    )
    if there == all_:
        return Decision(subject, "nvme", f"{human_bytes(there)} of {name} per rank")
    if there:
        return Decision(
            subject,
            "nvme",
            f"{human_bytes(there)} of {human_bytes(all_)} of {name} per rank are moved there: {why}",
        )
    return Decision(
        subject,
        "in memory",
        f"none of the {human_bytes(all_)} of {name} per rank is moved to the drive: {why}",
        granted=False,
    )
