"""Turn any exception into one diagnostic with a code; for exhausted memory with layouts that would fit."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.files import refusal_of
from paceline.core.units import human_bytes
from paceline.plan.cost.from_plan import cluster_of_hardware, planned_candidate, search_spec_of
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import Hardware, peak_flops, probe_hardware
from paceline.plan.layout_search import what_fits
from paceline.plan.plan import Plan
from paceline.runtime.device.device import device_memory, device_name, memory_bytes
from paceline.runtime.failures.root_cause import is_cascade
from paceline.runtime.process_group.world import World
from paceline.training import codes


def diagnose(
    error: BaseException,
    rank: int,
    silent_ranks: Sequence[int] = (),
    hint: Callable[[], str] | None = None,
    memory: Callable[[], str] = lambda: "",
) -> Diagnostic:
    """Return the diagnostic for an exception.

    It is the exception's first diagnostic, or one made of its type, message and innermost line of code.
    ``silent_ranks`` gave no sign of life while this rank waited for the cause of a lost connection. If memory
    ran out, ``hint`` returns layouts that would fit, ``memory`` the memory used.
    """
    # Errors that have a diagnostic, or are recognised as out of memory
    if isinstance(error, PacelineError):
        first = error.diagnostics[0]
        location = first.where or f"rank {rank}"
        return replace(first, where=location, evidence={**first.evidence, "rank": rank})
    if is_out_of_memory(error):
        return codes.TRAINING_OUT_OF_MEMORY(
            f"rank {rank}",
            "; ".join(
                filter(None, ((str(error).strip() or type(error).__name__).splitlines()[0][:300], memory()))
            ),
            rank=rank,
            hint=hint() if hint else "paceline plan shows the memory by part and what would fit",
            evidence={"rank": rank},
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = (str(error).strip() or type(error).__name__)[:2000]
    # A lost connection is the consequence of another rank's error
    if is_cascade(error):
        gone = f"; silent: rank {', '.join(map(str, silent_ranks))}" if silent_ranks else ""
        return codes.WORLD_PEER_LOST(
            where, text, rank=rank, gone=gone, evidence={"rank": rank, "silent_ranks": list(silent_ranks)}
        )
    # Refusals of the operating system; everything else is a plain exception
    name = getattr(error, "filename", None)
    path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    why = refusal_of(error, path) if isinstance(error, OSError) else None
    if isinstance(error, OSError) and why is not None:
        file_name = str(error.filename or "a file")
        return codes.TRAINING_SYSTEM_REFUSED(
            where,
            text,
            rank=rank,
            named=file_name,
            reason=why.reason,
            hint=why.hint,
            evidence={"rank": rank, "kind": why.kind},
        )
    return codes.TRAINING_EXCEPTION(
        where, rank=rank, kind=type(error).__name__, text=text, evidence={"rank": rank}
    )


def exit_code_of(error: BaseException, *, echo: bool = False) -> int:
    """Return the process's exit code; ``echo``: the error only reports that another rank is gone."""
    if echo:
        return int(ExitCode.PEER_FAILED)
    return int(error.exit_code) if isinstance(error, PacelineError) else int(ExitCode.FAILED)


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
    """Whether memory ran out, by the class of ``error`` or of its cause, or by the messages of devices and
    allocators.
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
    """Return layouts that would fit on this machine, as YAML, or else generic remedies.

    ``device``: this rank's. The search takes at most a second and starts nothing.
    """
    fits = what_fits(plan, hardware_here(plan, environ, device), ran_out=True)
    return "; or ".join([*fits, *([] if fits else smaller(plan))])


def hardware_here(plan: Plan, environ: Mapping[str, str], device: torch.device) -> Hardware:
    """Return the hardware that this process sees, without starting a driver's tool or another process."""
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
    """Return the measured peak of this rank with the planned one, and the free memory at its start."""
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
    remedies = []
    if batch.micro_batch > 1:
        remedies.append(
            f"per_device_train_batch_size: {max(1, batch.micro_batch // 2)} with gradient_accumulation_steps:"
            f" {batch.accumulation * 2}"
        )
    if not plan.recompute:
        remedies.append("gradient_checkpointing: true")
    if plan.adapter is None:
        remedies.append("lora: {r: 16}")
    return [
        *remedies,
        f"set data.max_length below {plan.seq_len}",
        "use more ranks to shard the states (distributed_strategy: fsdp)",
    ]
