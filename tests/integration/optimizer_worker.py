"""One rank that trains a small model with an optimizer under several strategies:
``python optimizer_worker.py all OUT_DIR``; reads ``OUT_DIR/cases.json``, writes ``OUT_DIR/<rank>.json``.

A case is (sections of the config, ways to go on); a way's config lies over the case's. ``single`` is computed
by rank 0 alone. Every step is also made by an optimizer of the library itself on clones of this rank's
tensors, where the case has ``shadow``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fsdp_worker import gathered
from memory_worker import MODEL, plan_of
from tiny_parts import TinyObjective, make_batch
from torch import nn

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.config.load import load_config
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.model_handle import Handle
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

WAYS: dict[str, dict[str, Any]] = {
    "single": {"distributed_strategy": "single"},
    "ddp": {"distributed_strategy": "ddp"},
    "zero_redundancy": {"distributed_strategy": "zero_redundancy"},
    "fsdp": {"fsdp": "full_shard"},
    "tp": {"parallelism": {"tp_size": 2}},
    "pipeline": {"parallelism": {"pp_size": 2}},
    "zero2": {"distributed_strategy": "zero2"},
    "hsdp": {"parallelism": {"dp_replicate_size": 2, "dp_shard_size": 2}},
    "fsdp x tp": {"parallelism": {"dp_shard_size": 2, "tp_size": 2}},
}
ROWS, STEPS, RATE = 8, 8, 1e-3


def build(case: dict[str, Any], world: World, out: Path) -> tuple[Strategy, Handle]:
    plan = plan_of(case, world, out)
    strategy = make_strategy(plan.strategy, world, plan)
    source = load_config(str(out / f"config{world.rank}.json")).config.model
    factory = HFModelFactory(
        source,
        seed=5,
        compute_dtype=getattr(torch, plan.precision.compute),
        master_dtype=getattr(torch, plan.precision.master),
        adapter=plan.adapter,
    )
    handle = strategy.prepare(Role.POLICY, factory, plan.optimizer)
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    return strategy, handle


def train(strategy: Strategy, handle: Handle, steps: range) -> list[float]:
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    found = []
    for step in steps:
        rows = [r % 16 for r in range(step * ROWS, (step + 1) * ROWS)][rank::size]
        half = len(rows) // 2
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            [make_batch(rows[:half]), make_batch(rows[half:])],
            TinyObjective(),
            lr=RATE,
            max_grad_norm=1.0,
        )
        found.append(result.losses["nll"])
    return found


def shadowed(strategy: Strategy, handle: Handle) -> Callable[[], float]:
    """Make every step on clones too, by an optimizer of their own; answers the largest difference so far."""
    named = getattr(handle, "named", None)
    pairs = named() if named is not None else list(handle.root.plain_named_parameters())
    keepers = getattr(handle.optimizer, "_param_to_rank", None)
    mine = [(n, p) for n, p in pairs if keepers is None or keepers[p] == strategy.world.rank]
    clones = [(n, nn.Parameter(p.detach().clone())) for n, p in mine]
    other = build_optimizer(strategy.plan.optimizer, clones)
    worst, own_step = [0.0], strategy._step

    def step(handle: Handle) -> None:
        for (_, p), (_, clone) in zip(mine, clones, strict=True):
            clone.grad = None if p.grad is None else p.grad.detach().clone()
        own_step(handle)
        set_learning_rate(other, RATE)
        other.step()
        for (_, p), (_, clone) in zip(mine, clones, strict=True):
            worst.extend([float((p.detach() - clone.detach()).abs().max())] if p.numel() else [])

    strategy._step = step  # type: ignore[method-assign]
    return lambda: max(worst)


def evaluation(strategy: Strategy, handle: Handle) -> float:
    rows = list(range(12))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    sums = make_runner(strategy).eval_window({Role.POLICY: handle}, [make_batch(rows)], TinyObjective())
    return sums.sums["nll"] / sums.weights["nll"]


def weights_alone(case: dict[str, Any], world: World, out: Path, path: Path) -> float:
    """The evaluation of a model that has read the checkpoint's ``param``, and no optimizer of its kind."""
    plain = {**case["training"], "optim": "sgd", "lr_scheduler_type": "linear", "warmup_steps": 0}
    strategy, handle = build({**case, "training": plain}, world, out)
    with CheckpointReader(path) as reader:
        strategy.import_state(handle, WeightsOnly(reader))
    return evaluation(strategy, handle)


class WeightsOnly:
    """A reader of a checkpoint that shows no optimizer state."""

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        return tuple(k for k in self.reader.kinds(role, name) if k in ("param", "buffer"))


def straight(case: dict[str, Any], world: World, out: Path) -> tuple[dict[str, Any], Path]:
    """All steps, with a save in the middle."""
    strategy, handle = build(case, world, out)
    difference = shadowed(strategy, handle) if case.get("shadow") else lambda: -1.0
    losses = train(strategy, handle, range(STEPS // 2))
    files = {"config.json": json.dumps(MODEL).encode()}
    store = Checkpointer(RunDir.at(out / "run"), world)
    path = store.save(STEPS // 2, strategy.export_state(handle), {"step": STEPS // 2}, files)
    evaluated = [evaluation(strategy, handle)] if case.get("evaluate") else []
    losses += train(strategy, handle, range(STEPS // 2, STEPS))
    if case.get("evaluate"):
        evaluated += [evaluation(strategy, handle), weights_alone(case, world, out, path)]
    found = {"losses": losses, "library": difference(), "evaluated": evaluated}
    return {**found, "parameters": parameters(world, strategy, handle)}, path


def parameters(world: World, strategy: Strategy, handle: Handle) -> dict[str, Any]:
    """All of them, which are the same on every rank: the others write their hash alone."""
    whole = gathered(world, strategy.export_state(handle))
    return {n: v if world.is_main else hash(tuple(v)) for n, v in whole.items()}


def resumed(case: dict[str, Any], world: World, out: Path, path: Path) -> dict[str, Any]:
    strategy, handle = build(case, world, out)
    with CheckpointReader(path) as reader:
        strategy.import_state(handle, reader)
    losses = train(strategy, handle, range(STEPS // 2, STEPS))
    return {"losses": losses, "parameters": parameters(world, strategy, handle)}


def over(case: dict[str, Any], way: str) -> dict[str, Any]:
    return {**case, "training": {**case["training"], **WAYS[way]}}


def ways(world: World, out: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Every way straight and resumed from its own save; then each way resumed from the save of ``from``."""
    found: dict[str, Any] = {}
    for way in case["ways"]:
        here = out / way
        here.mkdir(parents=True, exist_ok=True)
        alone = way == "single"
        if not alone or world.is_main:
            own = World.single() if alone else world
            made, path = straight(over(case, way), own, here)
            found[way] = {**made, "again": resumed(over(case, way), own, here, path)}
        world.barrier()
    for source, target in case.get("crossed", ()):
        own = World.single() if target == "single" else world
        if target != "single" or world.is_main:
            path = RunDir.at(out / source / "run").checkpoint(STEPS // 2)
            found[f"{source} to {target}"] = resumed(over(case, target), own, out / target, path)
        world.barrier()
    return found


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[2])
    cases = json.loads((out / "cases.json").read_text())
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    found = {}
    for name, case in cases.items():
        print(name, flush=True)
        found[name] = ways(world, out / name.replace(" ", "_"), case)
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
