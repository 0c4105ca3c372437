"""One rank that measures model states: ``python memory_worker.py SCENARIO OUT_DIR``; reads
``OUT_DIR/cases.json`` and writes the bytes of each case to ``OUT_DIR/<rank>.json``.

Cases are configs (``training``, ``model``, ``lora`` sections) by name; each goes through ``load_config`` and
``make_plan``, two windows are trained, and the bytes of real storages are compared with the plan's where the
test reads them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tiny_parts import TinyObjective, make_batch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.config.load import load_config
from paceline.models.factory import HFModelFactory
from paceline.plan.cost.memory.model_states import model_states
from paceline.plan.features.freezing import Freezing
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.roles import Role
from paceline.protocols.window import StepOutcome
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

CPU = dataclasses.replace(probe_hardware({}, use_cpu=True), packages=None)
MODEL = {
    "model_type": "llama",
    "hidden_size": 42,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 13,
    "max_position_embeddings": 64,
    "head_dim": 10,
}


def plan_of(case: dict[str, Any], world: World, out: Path) -> Plan:
    path = out / f"config{world.rank}.json"
    training = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **case["training"]}
    whole = {
        "model": {
            "config": {**MODEL, **case.get("model", {})},
            "tokenizer": "o/t",
            **case.get("section", {}),
        },
        "data": {"train": "rows.jsonl", "max_length": 64},
    }
    path.write_text(
        json.dumps({**whole, "training": training, **({"lora": case["lora"]} if "lora" in case else {})})
    )
    return make_plan(
        Job(load_config(str(path)).config, CPU, world_size=world.world_size, launcher="spawn", run_dir="")
    )


def storages(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind these tensors, each once."""
    found = {}
    for tensor in tensors:
        if tensor is None or tensor.device.type == "meta":
            continue
        plain = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        inner = [getattr(plain, name) for name in ("codes", "scale", "qmap") if hasattr(plain, "codes")]
        for storage in (one.untyped_storage() for one in inner or [plain]):
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def weights(handle: Handle) -> Iterator[Tensor | None]:
    """Parameters as they lie between steps, their low-precision copies and scales, and DeepSpeed's
    masters.
    """
    for parameter in handle.root.parameters():
        yield getattr(parameter, "ds_tensor", None) if getattr(parameter, "ds_numel", None) else parameter
        if getattr(parameter, "ds_numel", None):
            yield parameter.data
        yield getattr(parameter, "_paceline_copy", None)
    for module in handle.root.modules():
        packed = getattr(module, "quant_state", None)
        yield from () if packed is None else (packed.absmax, getattr(packed.state2, "absmax", None))
    engine: Any = getattr(handle.module, "optimizer", None)
    for name in (
        "single_partition_of_fp32_groups",
        "fp32_partitioned_groups_flat",
        "fp32_groups_flat_partition",
    ):
        yield from getattr(engine, name, ())


def gradients(handle: Handle) -> Iterator[Tensor | None]:
    """What stands ready for the optimizer."""
    for parameter in [*handle.root.parameters(), *handle.parameters()]:
        yield parameter.grad
    engine: Any = getattr(handle.module, "optimizer", None)
    for group in (getattr(engine, "averaged_gradients", None) or {}).values():
        yield from group or ()
    for partition in getattr(engine, "single_partition_of_fp32_groups", ()):
        yield partition.grad
    yield getattr(engine, "grad_partitions_flat_buffer", None)
    yield from getattr(engine, "fp32_groups_gradients_flat", ())


def moments(handle: Handle, scalars: bool) -> Iterator[Tensor | None]:
    assert handle.optimizer is not None
    for state in handle.optimizer.state.values():
        yield from (
            value
            for kind, value in state.items()
            if isinstance(value, Tensor) and (value.ndim == 0) == scalars and not kind.startswith("qmap")
        )


def measured(case: dict[str, Any], world: World, out: Path) -> dict[str, Any]:
    plan = plan_of(case, world, out)
    strategy = make_strategy(plan.strategy, world, plan)
    spec = plan.optimizer
    compute = getattr(torch, plan.precision.compute)
    source = load_config(str(out / f"config{world.rank}.json")).config.model
    handle = strategy.prepare(
        Role.POLICY,
        HFModelFactory(
            source, seed=5, compute_dtype=compute, adapter=plan.adapter, freezing=Freezing.of(plan)
        ),
        spec,
    )
    seen: dict[str, int] = {}
    finish = strategy.finish

    def watched(handle: Handle, **options: Any) -> StepOutcome:
        seen["gradients"] = storages(gradients(handle))
        return finish(handle, **options)

    strategy.finish = watched  # type: ignore[method-assign]
    for step in range(2):
        first = (step * 8 + strategy.data_parallel_rank * 2) % 7
        micro = [make_batch([first, first + 1]), make_batch([first + 2, first + 3])]
        make_runner(strategy).train_window(
            {Role.POLICY: handle}, micro, TinyObjective(), lr=1e-3, max_grad_norm=1.0
        )
    found = {
        "parameters": storages(weights(handle)),
        **seen,
        "optimizer": storages(moments(handle, False)),
        "counters": storages(moments(handle, True)),
    }
    planned = model_states(plan, world.rank)
    told = handle.state_bytes()
    return {
        "measured": found,
        "planned": None if planned is None else dataclasses.asdict(planned),
        "told": told,
    }


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[2])
    cases = json.loads((out / "cases.json").read_text())
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    found = {}
    for name, case in cases.items():
        print(name, flush=True)  # where it stood, should the deadline come
        found[name] = measured(case, world, out)
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
