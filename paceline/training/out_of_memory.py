"""Hints for a run that ran out of memory: what would fit instead, by the planner's search."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.plan import Plan
from paceline.plan.remedy import what_fits

OUT_OF_MEMORY = "OutOfMemoryError"  # torch's, on CUDA; by name, so that torch need not be imported
_WORDS = ("can't allocate memory", "Cannot allocate memory", "CUDA out of memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, by the exceptions of Python, of torch on CUDA and of torch's CPU allocator."""
    named = isinstance(error, MemoryError) or type(error).__name__ == OUT_OF_MEMORY
    return named or any(words in str(error) for words in _WORDS)


def out_of_memory_hint(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return what would fit on this machine, as YAML, else what makes the same training smaller.

    The search takes at most a second and starts nothing.
    """
    hardware = probe_hardware(environ, use_cpu=plan.device == "cpu", num_nodes=plan.num_nodes)
    fits = what_fits(plan, hardware, ran_out=True)
    return "; or ".join([*fits, *([] if fits else smaller(plan))])


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
