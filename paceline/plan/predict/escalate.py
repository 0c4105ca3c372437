"""``auto``: what the size rule chose, checked against memory, and the next strategy while it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.plan.hardware import Hardware
from paceline.plan.mesh import Mesh
from paceline.plan.predict.search import GIB, WHOLE, ZERO, Ask, own_kernels, predicted
from paceline.plan.predict.work import Work
from paceline.plan.shape import ModelShape
from paceline.plan.strategy import Chosen

CHAIN = (("ddp", 0), ("zero2", 2), ("zero3", 3))


def escalate(
    chosen: Chosen,
    config: Mapping[str, Any],
    shape: ModelShape | None,
    adapter: Mapping[str, Any] | None,
    hardware: Hardware,
    world_size: int,
) -> Chosen:
    """``chosen``, or the first strategy after it whose predicted peak fits with the config's micro-batch; every step said in the reason.

    Left as it is on a CPU and on a card that the catalogue does not know. Where nothing fits, the last is kept and what would help is said.
    """
    from paceline.plan.predict.from_plan import adapter_work, cluster_of_hardware

    cluster = cluster_of_hardware(hardware, max(1, world_size // max(1, hardware.num_devices)))
    if shape is None or cluster is None:
        return chosen
    training = config["training"]
    said: list[str] = []
    work = Work(
        shape=shape,
        machine=cluster.machine,
        seq_len=int(config["data"]["max_length"]),
        micro_batch=int(training["per_device_train_batch_size"]),
        accumulation=int(training["gradient_accumulation_steps"]),
        dp=world_size,
        recompute="full" if training["gradient_checkpointing"] else "none",
        adapter=adapter_work(shape, adapter),
    )
    ask = Ask(shape, replace(cluster, cards=world_size), work.seq_len, adapter=work.adapter)
    start = next((place for place, (name, _) in enumerate(CHAIN) if name == chosen.strategy), len(CHAIN))
    chain = CHAIN[start:]
    if work.adapter and work.adapter.base_bytes < 2:  # packed weights are not shared out by ZeRO-3
        chain = tuple(link for link in chain if link[1] < 3) or chain[:1]
    for name, stage in chain:
        kernels = own_kernels(ask, stage, 1, deepspeed=stage > 0)
        layout = replace(work, zero=stage, storage=ZERO if stage else WHOLE, kernels=kernels)
        candidate = predicted(name, layout, Mesh(dp_shard=world_size), ask)
        if candidate.safe:
            fits = f"{name} fits: {candidate.bytes / GIB:.0f} GiB of {candidate.card / GIB:.0f}"
            return replace(chosen, strategy=name, reason="; ".join([chosen.reason, *said, fits]))
        said.append(f"{name} does not fit: {candidate.binding}")
    help_ = (
        "a smaller micro-batch"
        if work.recompute == "full"
        else "gradient_checkpointing: true, or a smaller micro-batch"
    )
    last = chain[-1][0]
    return replace(
        chosen, strategy=last, reason="; ".join([chosen.reason, *said, f"{last} is kept; {help_} would help"])
    )
