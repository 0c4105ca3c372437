"""What a resumed run keeps of the run before: the same samples in the same order. No torch: it is looked at before a start as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan.batch import resplit
from paceline.plan.plan import Plan

# What a resumed run may not change: the order of samples, and what they are.
FIXED = ("data_fingerprint", "global_batch", "seq_len", "packing", "seed")


def keep_global_batch(state: Mapping[str, Any], plan: Plan) -> tuple[Plan, list[Diagnostic]]:
    """On another number of ranks, micro-batch and accumulation are derived anew so that a step takes the same rows (contract 4)."""
    rows, ranks = int(state.get("global_batch", plan.batch.global_batch)), int(state.get("world_size", plan.world_size))
    if rows == plan.batch.global_batch or ranks == plan.world_size:
        return plan, []  # the same ranks with another batch: same_run names it
    batch = resplit(rows, plan.batch.data_parallel_size, plan.batch.micro_batch)
    note = Diagnostic(
        "resume.batch_resplit",
        f"the run takes {rows} rows a step since its start on {ranks} ranks; on {plan.world_size} ranks that is {batch}",
        "training.per_device_train_batch_size",
        f"{plan.batch.micro_batch} × {plan.batch.accumulation} in the config",
        severity=Severity.NOTE,
    )
    return replace(plan, batch=batch), [note]
