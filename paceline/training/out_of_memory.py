"""Hints for a run that ran out of memory: what would fit instead, by the planner's search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch

from paceline.core.units import human_bytes
from paceline.plan.cost.from_plan import cluster_of_hardware, planned_candidate, search_spec_of
from paceline.plan.hardware.data_sheet_peaks import peak_flops
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import Hardware, probe_hardware
from paceline.plan.plan import Plan
from paceline.plan.strategy_choice.what_fits import what_fits
from paceline.runtime.device.device import device_memory, device_name, memory_bytes
from paceline.runtime.process_group.world import World

OUT_OF_MEMORY = "OutOfMemoryError"  # torch's, on CUDA; by name, so that torch need not be imported
#: What devices, allocators and libraries print. Not: limits of locked or shared memory, and full disks.
_SENTENCES = re.compile(
    r"out[ -]of[ -](?:host |device |gpu )?memory|not enough memory|insufficient memory"
    r"|(?:can't|cannot|could not|couldn't|unable to|failed to) allocate\b|_ALLOC_FAILED|MemoryAllocation"
    r"|OutOfMemory|OUT_OF_(?:\w+_)?MEMORY|bad_alloc|bad allocation"
    r"|allocation (?:of \d+ bytes )?failed|malloc of size \d+ failed",
    re.IGNORECASE,
)
_OTHER_LIMITS = re.compile(r"\bibv_|memlock|shared memory|/dev/shm|No space left", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: by the class of ``error`` or of its cause, or by what devices and allocators
    print.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = str(link)
        if isinstance(link, MemoryError) or type(link).__name__ == OUT_OF_MEMORY:
            return True
        if _SENTENCES.search(text) and not _OTHER_LIMITS.search(text):
            return True
        link = link.__cause__
    return False


def out_of_memory_hint(plan: Plan, environ: Mapping[str, str], device: torch.device) -> str:
    """Return what would fit on this machine, as YAML, else what makes the same training smaller.

    ``device``: this rank's own. The search takes at most a second and starts nothing.
    """
    fits = what_fits(plan, hardware_here(plan, environ, device), ran_out=True)
    return "; or ".join([*fits, *([] if fits else smaller(plan))])


def hardware_here(plan: Plan, environ: Mapping[str, str], device: torch.device) -> Hardware:
    """Return the hardware as this process sees it: no driver's tool and no process is started for it."""
    host = probe_hardware(environ, use_cpu=True, num_nodes=plan.num_nodes)
    if not is_accelerator(device.type):
        return host
    total = device_memory(device)
    return replace(
        host,
        device=device.type,
        device_name=device_name(device),
        num_devices=max(1, plan.world_size // plan.num_nodes),
        memory_bytes=total or host.memory_bytes,
        peak_flops=peak_flops(device_name(device)),
    )


def memory_used(plan: Plan, world: World) -> str:
    """Return the measured peak of this rank beside the planned one, and what was free at its start."""
    parts = [f"measured peak {human_bytes(memory_bytes(world.device))}"]
    cluster = cluster_of_hardware(hardware_here(plan, {}, world.device), plan.num_nodes)
    spec = search_spec_of(plan, replace(cluster, cards=plan.world_size)) if cluster else None
    planned = planned_candidate(plan, spec) if spec else None
    if planned is not None:
        parts.append(f"planned {human_bytes(planned.bytes)}")
    if world.free_bytes:
        parts.append(f"{human_bytes(world.free_bytes)} were free at the start")
    return ", ".join(parts)


def smaller(plan: Plan) -> list[str]:
    """Return generic remedies that this plan does not use yet."""
    batch = plan.batch
    found = []
    if batch.micro_batch > 1:
        found.append(
            f"per_device_train_batch_size: {max(1, batch.micro_batch // 2)} with gradient_accumulation_steps:"
            f" {batch.accumulation * 2}"
        )
    if not plan.recompute:
        found.append("gradient_checkpointing: true")
    if plan.adapter is None:
        found.append("lora: {r: 16}")
    return [
        *found,
        f"set data.max_length below {plan.seq_len}",
        "use more ranks to shard the states (distributed_strategy: fsdp)",
    ]
