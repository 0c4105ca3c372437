"""Where memory runs out the finding names what fits on this hardware: the next strategy or a gentler
layout, never what is set already.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate.utils.memory import should_reduce_batch_size

from paceline.config.schema import Config
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.hardware.probe import Hardware, probe_hardware
from paceline.plan.layout_search import what_fits
from paceline.plan.model.model_catalogue import known_models
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import World
from paceline.training import errors
from paceline.training.errors import diagnose, is_out_of_memory, out_of_memory_hint, smaller

CPU = replace(probe_hardware({}, use_cpu=True), packages=None)


def plan_of(model: str, hardware: Hardware, ranks: int, **training: Any) -> Plan:
    config = Config.model_validate(
        {
            "model": {"config": known_models()[model].config, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 1024},
            "training": {"mixed_precision": "bf16" if hardware.device == "cuda" else "no", **training},
        }
    )
    return make_plan(Job(config, hardware, world_size=ranks, launcher="spawn", run_dir="none"))


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3.2-1b", "2x4090", {"distributed_strategy": "ddp", "per_device_train_batch_size": 8}),
    ("llama-3.2-3b", "4x4090", {"distributed_strategy": "zero2", "per_device_train_batch_size": 16}),
    ("llama-3-8b", "8xA100", {"distributed_strategy": "zero3", "per_device_train_batch_size": 32}),
    (
        "llama-3-8b",
        "8xA100",
        {"fsdp": "full_shard", "per_device_train_batch_size": 64, "gradient_checkpointing": True},
    ),
    (
        "llama-3-8b",
        "2xH100",
        {"fsdp": "full_shard", "per_device_train_batch_size": 1, "gradient_checkpointing": True},
    ),
]


@pytest.mark.parametrize(("model", "cards", "training"), CASES)
def test_a_card_that_is_full_names_what_fits(model: str, cards: str, training: dict[str, Any]) -> None:
    cluster = cluster_of(cards)
    plan = plan_of(model, cluster.hardware(), cluster.cards, **training)
    found = what_fits(plan, cluster.hardware(), ran_out=True)
    assert found, "something smaller runs on these cards"
    batch = plan.batch
    for text in found:
        assert " fits, " in text and "GiB: training: {" in text
        own = (
            f"per_device_train_batch_size: {batch.micro_batch}," in text
            and f"gradient_checkpointing: {str(plan.recompute).lower()}" in text
            and f"{plan.strategy} fits" in text
        )
        assert not own, "the layout that ran out is named as its own remedy"
        need, room = (float(word) for word in text.split(" fits, ")[1].split(" GiB")[0].split(" of "))
        assert need <= 0.9 * room + 0.06
        rows = [
            int(text.split(f"{key}: ")[1].split(",")[0])
            for key in ("per_device_train_batch_size", "gradient_accumulation_steps")
        ]
        assert rows[0] * rows[1] * cluster.cards >= batch.global_batch, (
            "the same rows a step, over as many ranks or fewer"
        )


def test_what_ran_out_was_predicted_too_low_so_others_are_raised_by_as_much() -> None:
    """What the plan thought would take half the card took all of it: a layout of two thirds is no remedy."""
    hardware = cluster_of("8xA100").hardware()
    plan = plan_of("llama-3.2-1b", hardware, 8, distributed_strategy="ddp", per_device_train_batch_size=2)
    needs = [
        [float(t.split(" fits, ")[1].split(" of ")[0]) for t in what_fits(plan, hardware, ran_out=ran)]
        for ran in (False, True)
    ]
    assert needs[1] and min(needs[1]) > min(needs[0]) * 1.5 or needs[1] < needs[0]


def test_a_cpu_is_told_as_well_and_by_the_real_exceptions() -> None:
    small = replace(CPU, memory_bytes=16 * 2**30, host_memory_bytes=16 * 2**30)
    plan = plan_of("smollm2-360m", small, 2, distributed_strategy="ddp", per_device_train_batch_size=32)
    fits = what_fits(plan, small, ran_out=True)
    assert fits and all("of 8.0 GiB" in text for text in fits)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    for error in (
        caught.value,
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    ):
        assert is_out_of_memory(error)
        found = diagnose(error, 1, hint=lambda: "; or ".join(fits))
        assert found.code == "training.out_of_memory" and found.hint == "; or ".join(fits) and found.found
    assert not is_out_of_memory(ValueError("shapes differ"))


def accelerate_sentences() -> list[str]:
    """What Accelerate takes for a full device (cuDNN's sentence is another fault): read from its source, so
    that a release that knows more fails here.
    """
    found = re.findall(r'^ +"(.+)",', inspect.getsource(should_reduce_batch_size), re.MULTILINE)
    assert len(found) >= 5
    return [text for text in found if "NOT_SUPPORTED" not in text]


@pytest.mark.parametrize(
    "text",
    [
        *accelerate_sentences(),
        "HIP out of memory. Tried to allocate 20.00 MiB",
        "NPU out of memory. Tried to allocate 2 GiB",
        "MPS backend out of memory (MPS allocated: 17.9 GB)",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
        "NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'",
        "UR error: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "cudaErrorMemoryAllocation: out of resources",
        "hipErrorOutOfMemory",
        "std::bad_alloc",
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: not enough memory: you tried to"
        " allocate 8589934592 bytes.",
        "unable to mmap 1048576 bytes from file <model.safetensors>: Cannot allocate memory (12)",
        "[Errno 12] Cannot allocate memory",
        "malloc of size 137438953472 failed",
        "Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
        "INTERNAL ASSERT FAILED: Failed to allocate 4096 bytes on device",
    ],
)
def test_every_allocator_s_sentence_is_out_of_memory(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = RuntimeError(text)
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "text",
    [
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "Error: failed to extend /dev/shm/nccl-abc to 33030532 bytes, error: No space left on device (28)",
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
        "an illegal memory access was encountered",
        "expected all memory formats to be contiguous",
    ],
)
def test_other_limits_are_not_out_of_memory(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


def test_where_nothing_can_be_searched_only_what_is_not_set_is_named() -> None:
    plan = plan_of("gpt2", CPU, 1, per_device_train_batch_size=1, gradient_checkpointing=True)
    unknown = replace(plan, shape=None)
    assert what_fits(unknown, CPU) == []
    hint = out_of_memory_hint(unknown, {}, torch.device("cpu"))
    assert "max_length" in hint and "per_device" not in hint and "gradient_checkpointing" not in hint
    assert smaller(replace(plan, recompute=False))[0] == "gradient_checkpointing: true"


def test_on_an_accelerator_the_measured_peak_stands_beside_the_planned_and_what_was_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No tool and no process is started for it: the failing process knows its device."""
    hardware = cluster_of("8xA100").hardware()
    plan = plan_of("llama-3.2-1b", hardware, 8, distributed_strategy="ddp", per_device_train_batch_size=2)
    device = torch.device("cuda", 0)
    for name, value in (("device_name", hardware.device_name), ("device_memory", hardware.memory_bytes)):
        monkeypatch.setattr(errors, name, lambda device, value=value: value)
    monkeypatch.setattr(errors, "memory_bytes", lambda device: 70 * 2**30)
    here = errors.hardware_here(plan, {}, device)
    assert (here.device, here.num_devices, here.memory_bytes) == ("cuda", 8, hardware.memory_bytes)
    world = World(0, 0, 8, 1, device, "nccl", None, free_bytes=77 * 2**30)
    text = errors.memory_used(plan, world)
    assert text.startswith("measured peak 70.00 GiB, planned ") and "77.00 GiB were free at the start" in text
    assert " fits, " in out_of_memory_hint(plan, {}, device)
    found = diagnose(torch.OutOfMemoryError("CUDA out of memory"), 0, memory=lambda: text)
    assert found.found == f"CUDA out of memory; {text}"
    on_cpu = errors.memory_used(plan, World.single("cpu"))
    assert on_cpu == "measured peak 70.00 GiB"
