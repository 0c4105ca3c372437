"""One rank of what two processes must do alike for each family: ``python family_worker.py KIND=WAY,…[+…]
OUT_DIR``.

Writes ``OUT_DIR/<rank>.json`` after each family, by way: (loss, gradient norm) of every step, or why not. A
way that ends in ``64`` computes in float64.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_stub import engine_of
from family_rollouts import answered, reinforced
from model_families import Source, make_batch
from test_state_layers import Wide
from tiny_families import tiny_config

from paceline.algorithms.supervised.sft import SFT
from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import PacelineError
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.model.family import families
from paceline.plan.plan import DdpOptions, OptimizerSpec, Precision
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

STEPS, MICRO_BATCHES = 3, 4
WAYS = {
    "single": ("single", Mesh()),
    "ddp": ("ddp", Mesh(dp_replicate=2)),
    "fsdp": ("fsdp", Mesh(dp_shard=2)),
    "zero3": ("zero3", Mesh(dp_shard=2)),
    "tp": ("fsdp", Mesh(tp=2)),
}
WIDE = "64"  # at the end of a way: in float64
#: what the plan refuses before a process starts
BY_PLAN = {
    **{
        ("zero3", kind): "ZeRO-3: its ranks visit other experts each"
        for kind, known in families().items()
        if known.experts_in_turn
    },
    **{
        ("tp", kind): "this model has no tensor-parallel plan"
        for kind, known in families().items()
        if not known.tensor_plan
    },
}


def prepared(world: World, kind: str, way: str, *, dtype: str = "float32", **changes: Any) -> tuple[Any, Any]:
    """The strategy, and the family's tiny model in it."""
    name, mesh = WAYS[way]
    size = mesh.data_parallel_size
    plan: Any = SimpleNamespace(
        strategy=name,
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(dtype, dtype, dtype, False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(2, MICRO_BATCHES // size, size),
        engine=engine_of({}, name),
        adapter=None,
        world_size=world.world_size,
        run_dir="",
    )
    strategy = make_strategy(name, world, plan)
    held: Any = getattr(torch, dtype)
    factory = HFModelFactory(
        Source(config={**tiny_config(kind), **changes}), seed=5, master_dtype=held, compute_dtype=held
    )
    handle = strategy.prepare(Role.POLICY, factory, OptimizerSpec(learning_rate=1e-2, weight_decay=0.1))
    handle.root.eval()  # a router may draw at random in training
    strategy.warm_up(handle, make_batch((5, 9)), SFT())
    for module in handle.root.modules():
        if "Router" in type(module).__name__:  # PhiMoE's draws in training, whatever the number of ranks
            module.eval().train = lambda *_: None  # type: ignore[method-assign,assignment]
    return strategy, handle


def train(strategy: Any, handle: Any, steps: range) -> list[list[float]]:
    """(loss, gradient norm) of each step over the same global micro-batches."""
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    found = []
    for step in steps:
        places = [step * MICRO_BATCHES + j * size + rank for j in range(MICRO_BATCHES // size)]
        batches = [make_batch((5, 9, 1 + place % 3), seed=place) for place in places]
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle}, batches, SFT(), lr=1e-2, max_grad_norm=0.5
        )
        assert result.grad_norm is not None
        found.append([result.losses["nll"], result.grad_norm])
    return found


def steps_of(world: World, kind: str, way: str) -> list[list[float]]:
    """The steps of one way."""
    wide = way.endswith(WIDE)
    with Wide() if wide else nullcontext():
        strategy, handle = prepared(
            world, kind, way.removesuffix(WIDE), dtype="float64" if wide else "float32"
        )
        try:
            return train(strategy, handle, range(STEPS))
        finally:
            strategy.close()


def spread(kind: str) -> dict[str, float]:
    """What makes a tiny model's answers differ, where the family's config has it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = CONFIG_MAPPING[kind]().to_dict()
    return {"initializer_range": 0.2} if "initializer_range" in known else {}


def rollouts(world: World, kind: str) -> list[Any]:
    """Answers to four prompts, each rank to its share: (tokens, log-probabilities) by prompt."""
    strategy, handle = prepared(world, kind, "single" if world.world_size == 1 else "fsdp", **spread(kind))
    try:
        mine = answered(strategy, handle, range(world.rank, 4, world.world_size))
        whole = {place: found for part in world.all_gather_json(mine) for place, found in part.items()}
        return [whole[str(place)] for place in range(4)]
    finally:
        strategy.close()


def grpo(world: World, kind: str) -> Any:
    """What two steps of GRPO find."""
    strategy, handle = prepared(world, kind, "single", **spread(kind))
    try:
        return reinforced(strategy, handle)
    finally:
        strategy.close()


def resumed(world: World, kind: str, out: Path) -> bool:
    """Whether a run that goes on from a checkpoint is bit for bit the one that did not stop."""
    found: list[Any] = []
    path = Path()
    for again in (False, True):
        strategy, handle = prepared(world, kind, "fsdp")
        if again:
            with CheckpointReader(path) as reader:
                strategy.import_state(handle, reader)
        else:
            train(strategy, handle, range(2))
            run = RunDir.at(out / f"run-{kind}")
            path = Checkpointer(run, world).save(2, strategy.export_state(handle), {"step": 2}, {})
        steps = train(strategy, handle, range(2, 4))
        held = {(s.name, s.kind): s.tensor.clone() for s in strategy.export_state(handle)}
        found.append((steps, held))
        strategy.close()
    (one, before), (two, after) = found
    return one == two and all(torch.equal(t, after[key]) for key, t in before.items())


def family(world: World, kind: str, ways: Sequence[str], out: Path) -> dict[str, Any]:
    """What each way gives for ``kind``."""
    found: dict[str, Any] = {}
    others = {
        "resume": lambda: resumed(world, kind, out),
        "rollouts": lambda: rollouts(world, kind),
        "grpo": lambda: grpo(world, kind),
    }
    for way in ways:
        if (way, kind) in BY_PLAN:
            found[way] = {"refused": BY_PLAN[way, kind]}
            continue
        try:
            found[way] = others[way]() if way in others else steps_of(world, kind, way)
        except PacelineError as error:
            found[way] = {"refused": error.diagnostics[0].what}
        except Exception as error:  # a class's own error is the finding
            found[way] = {"fails": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    return found


def main() -> None:
    """Every family of the first argument, one after the other."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=180)
    out, found = Path(sys.argv[2]), dict[str, Any]()
    for asked in sys.argv[1].split("+"):
        kind, _, ways = asked.partition("=")
        found[kind] = family(world, kind, ways.split(","), out)
        staged = out / f"{world.rank}.part"
        staged.write_text(json.dumps(found))
        os.replace(staged, out / f"{world.rank}.json")
    world.close(ok=True)


if __name__ == "__main__":
    main()
