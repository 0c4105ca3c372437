"""What it costs to go on in another layout than the checkpoint was saved in. Imports no torch."""

from __future__ import annotations

from math import prod

from paceline.checkpoint.format.manifest import Manifest
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import JsonObject, as_number
from paceline.core.safetensors_header import STORED_DTYPES
from paceline.core.units import human_bytes
from paceline.plan.plan import Plan
from paceline.training import codes
from paceline.training.checkpointing.resume_compatibility import STRATEGY_LABEL, shard_layout, strategy_label


def cost_of_move(state: JsonObject, plan: Plan, manifest: Manifest) -> list[Diagnostic]:
    """Return a note with the bytes read and a rank's memory if strategy, ranks or shards are others."""
    before, now = str(state.get("strategy", plan.strategy)), plan.strategy
    if STRATEGY_LABEL in state:  # an earlier version saved no ZeRO stage of a user's DeepSpeed file
        before, now = str(state[STRATEGY_LABEL]), strategy_label(plan)
    ranks = int(as_number(state.get("world_size", plan.world_size)))
    same_shards = state.get("shard_layout") in (None, shard_layout(plan))
    if (before, ranks) == (now, plan.world_size) and same_shards:
        return []
    what = (
        f"the checkpoint goes to another layout: {before}, {_ranks(ranks)} → {now}, {_ranks(plan.world_size)}"
    )
    read = f"{human_bytes(sum(manifest.files[name].bytes for name in manifest.shards))} read over all ranks"
    found = f"{read}; {_peak(plan, manifest)}"
    return [codes.RESUME_MOVED(what, "training.resume_from_checkpoint", found, severity=Severity.NOTE)]


def _peak(plan: Plan, manifest: Manifest) -> str:
    """Weights and optimizer of the fullest rank, and beside them the tensor that is being read."""
    states = plan.memory.largest if plan.memory is not None else None
    if states is None:
        return "memory of a rank not known for this model"
    kept = states.total - states.gradients  # gradients come with the first backward
    held = f"{human_bytes(kept + _largest_read(plan, manifest))} a rank at peak"
    return f"{held}, weights and optimizer with the tensor that is being read"


def _largest_read(plan: Plan, manifest: Manifest) -> int:
    """Bytes of the largest tensor, or of a rank's shard of it."""
    index = manifest.tensors or {}
    whole = max((prod(rows.shape) * STORED_DTYPES[rows.dtype][1] // 8 for rows in index.values()), default=0)
    return -(-whole // prod(shard_layout(plan)))


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"
