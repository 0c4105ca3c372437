"""One rank that trains a small model under ddp and under zero_redundancy: ``python zero_redundancy_worker.py
all OUT_DIR``; reads ``OUT_DIR/cases.json``, writes ``OUT_DIR/<rank>.json``. A case is (optimizer, its
arguments, what is trained by the start of its name, options of the strategy).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from strategy_worker import gathered, parameters, train
from tiny_parts import MemoryReader, TinyObjective, TinyRoot, make_batch, plan, window

from paceline.plan.plan import OptimizerSpec
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

Case = tuple[str, dict[str, Any], str, dict[str, Any]]
WAYS = ("ddp", "zero_redundancy")


def build(world: World, way: str, case: Case) -> tuple[Strategy, Handle]:
    name, args, trained, options = case
    root = TinyRoot()
    for parameter_name, parameter in root.named_parameters():
        parameter.requires_grad_(parameter_name.startswith(trained))
    strategy = make_strategy(way, world, plan(world_size=world.world_size, **options))
    spec = OptimizerSpec(name=name, learning_rate=1e-2, weight_decay=0.1, args=args)
    return strategy, strategy.prepare(Role.POLICY, lambda: root, spec)


def tensors(reader: MemoryReader) -> dict[str, list[float]]:
    return {"/".join(key): value.double().flatten().tolist() for key, value in sorted(reader.tensors.items())}


def steps(strategy: Strategy, handle: Handle, which: range) -> list[dict[str, Any]]:
    return train(strategy, handle, which, clip=0.3, accumulation=strategy.plan.batch.accumulation)


def both(world: World, case: Case) -> dict[str, Any]:
    """Under both: six steps, what is exported of them, and four more by both strategies from what either
    has exported.
    """
    found: dict[str, Any] = {}
    saved = {}
    for way in WAYS:
        strategy, handle = build(world, way, case)
        strategy.warm_up(handle, make_batch([-1]), TinyObjective())
        first = steps(strategy, handle, range(3))
        saved[way] = gathered(world, list(strategy.export_state(handle)))
        then = steps(strategy, handle, range(3, 6))
        kept = sum(len(state) > 0 for state in handle.stepper.state.values())
        found[way] = {
            "steps": first + then,
            "exported": tensors(saved[way]),
            "parameters": parameters(handle),
            "kept": kept,
        }
    for source, target in ((a, b) for a in WAYS for b in WAYS):
        strategy, handle = build(world, target, case)
        strategy.import_state(handle, saved[source])
        strategy.warm_up(handle, make_batch([-1]), TinyObjective())
        again = steps(strategy, handle, range(3, 6))
        found[f"{source} to {target}"] = {"steps": again, "parameters": parameters(handle)}
    return found


def overflow(world: World) -> dict[str, Any]:
    """fp16 with a scaler that starts too high: what every step came to, under both."""
    found = {}
    for way in WAYS:
        strategy = make_strategy(way, world, plan(scaler=True, world_size=world.world_size))
        root = TinyRoot(torch.float32, compute=torch.float16)
        handle = strategy.prepare(Role.POLICY, lambda root=root: root, OptimizerSpec(learning_rate=1e-2))
        assert handle.scaler is not None
        handle.scaler.load_state_dict({**handle.scaler.state_dict(), "scale": 2.0**24})
        strategy.warm_up(handle, make_batch([-1]), TinyObjective())
        results = [
            make_runner(strategy).train_window(
                {Role.POLICY: handle},
                window(s, world.rank, world.world_size),
                TinyObjective(),
                lr=1e-2,
                max_grad_norm=1.0,
            )
            for s in range(16)
        ]
        scaler = {s.kind: s.tensor.item() for s in strategy.export_state(handle) if s.name == "grad_scaler"}
        found[way] = {
            "skipped": [r.skipped for r in results],
            "losses": [r.losses["nll"] for r in results],
            "parameters": parameters(handle),
            "scaler": world.all_gather_json(scaler),
        }
    return found


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[2])
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    cases = json.loads((out / "cases.json").read_text())
    found = {name: both(world, case) for name, case in cases.items()} | {"overflow": overflow(world)}
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
