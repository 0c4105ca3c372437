"""Saves beside training in the plan: memory of the copy, and saves that are synchronous where it has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from test_room import CPU, GIB, plan_of

from paceline.plan.cost.memory.model_states import checkpoint_bytes
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.plan import Decision, Plan

KEY = "training.save_async"


def decided(plan: Plan) -> Decision:
    (found,) = [d for d in plan.decisions if d.subject == KEY]
    return found


def test_a_copy_that_fits_is_counted_and_one_that_does_not_makes_saves_synchronous() -> None:
    strategy: dict[str, Any] = {"distributed_strategy": "fsdp", "fsdp": "full_shard", "save_async": True}
    node = cluster_of("8xH100").hardware()
    fits = plan_of("llama-3-8b", replace(node, host_memory_bytes=256 * GIB), 8, **strategy)
    assert fits.save_async and fits.shape is not None
    # fp32 weights and two moments, and a counter a tensor
    whole = checkpoint_bytes(fits)
    assert whole is not None and 0 <= whole - 12 * fits.shape.num_parameters < 4096
    assert decided(fits).choice == "on" and "89.75 GiB a node" in decided(fits).reason
    assert "11.22 GiB a process" in decided(fits).reason
    tight = plan_of("llama-3-8b", replace(node, host_memory_bytes=90 * GIB), 8, **strategy)
    assert not tight.save_async and not decided(tight).granted and "synchronous" in decided(tight).reason


def test_states_that_are_on_the_host_leave_less_room() -> None:
    one = plan_of("qwen2.5-0.5b", CPU, 1, use_cpu=True, save_async=True, mixed_precision="no")
    assert one.save_async
    need = checkpoint_bytes(one)
    assert need is not None
    between = replace(CPU, host_memory_bytes=int(need * 1.8), memory_bytes=int(need * 1.8))
    other = plan_of("qwen2.5-0.5b", between, 1, use_cpu=True, save_async=True, mixed_precision="no")
    assert not other.save_async, "the states lie in the same memory as their copy"


def test_an_adapter_copies_little_and_nothing_is_said_unasked() -> None:
    adapted = plan_of("llama-3-8b", "8xH100", lora={"r": 8}, save_async=True)
    whole = checkpoint_bytes(adapted)
    assert adapted.save_async and whole is not None and whole < GIB
    plain = plan_of("llama-3-8b", "8xH100")
    assert not plain.save_async and KEY not in [d.subject for d in plain.decisions]
    assert "save_async" not in plain.to_json()
    assert Plan.from_json(adapted.to_json()).save_async
