"""One rank of pipeline scenarios on a real (tiny) model:
``python pipeline_worker.py SCENARIO[+SCENARIO…] OUT_DIR``; writes ``OUT_DIR/<rank>.json``.

Every rank also computes the reference, alone in its own process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from count_reads import count_reads
from fsdp_worker import FOLDER, LLAMA, ROWS, SAVED, SECTION, SPEC, STEPS, factory, gathered, plan
from tiny_parts import MemoryReader, TinyObjective, make_batch

from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.runtime.random_seed import seed_for
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Runner, Strategy
from paceline.strategies.window.runner import make_runner

FOUR = {**LLAMA, "num_hidden_layers": 4}


def window(step: int, strategy: Strategy, accumulation: int) -> list[Batch]:
    """The rank's micro-batches: the same global rows whatever the mesh; the last holds one row of the
    step's, the first all that are left.
    """
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    own = list(range(step * ROWS, (step + 1) * ROWS))[rank::size]
    rest = accumulation - 1
    return [make_batch(own[: len(own) - rest]), *(make_batch([row]) for row in own[len(own) - rest :])]


def train(
    runner: Runner, handle: Handle, steps: Sequence[int], accumulation: int, seeded: bool = False
) -> list[tuple[float, float]]:
    """(loss, gradient norm) a step."""
    found, strategy = [], runner.strategy
    for step in steps:
        result = runner.train_window(
            {Role.POLICY: handle},
            window(step, strategy, accumulation),
            TinyObjective(),
            lr=2e-3 * (1 - step / 40),
            max_grad_norm=0.5,
            generator_seed=(
                (lambda j, s=step: seed_for(3, s, j, "policy", strategy.data_parallel_rank))
                if seeded
                else None
            ),
        )
        assert result.grad_norm is not None
        found.append((result.losses["nll"], result.grad_norm))
    return found


def evaluate(runner: Runner, handle: Handle) -> list[float]:
    """99 rows over all ranks, in an odd number of micro-batches."""
    strategy = runner.strategy
    own = list(range(99))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    micro = [make_batch(own[i : i + 9]) for i in range(0, len(own), 9)]
    sums = runner.eval_window({Role.POLICY: handle}, micro, TinyObjective())
    return [sums.sums["nll"], sums.sums["correct/nll"], sums.weights["nll"], sums.rows]


class Reference:
    """Six steps in one process, by what the model is; each computed once."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def get(self, dtype: str, **config: Any) -> dict[str, Any]:
        key = json.dumps([dtype, config])
        if key not in self._known:
            world = World.single()
            strategy = make_strategy("single", world, plan(Mesh(), dtype))  # type: ignore[arg-type]
            handle = strategy.prepare(Role.POLICY, factory(dtype, **config), SPEC)
            runner = make_runner(strategy)
            steps = train(runner, handle, range(STEPS), 4)
            evaluated = evaluate(runner, handle)
            self._known[key] = {
                "steps": steps,
                "eval": evaluated,
                "parameters": gathered(world, strategy.export_state(handle)),
            }
        return dict(self._known[key])


def pipeline(
    world: World,
    mesh: Mesh,
    dtype: str,
    recompute: bool = False,
    config: Any = None,
    build: HFModelFactory | None = None,
    **engine: Any,
) -> tuple[Runner, Handle]:
    inside = {key: engine.pop(key) for key in ("sequence_parallel", "loss_parallel") if key in engine}
    inside["meta_start"] = True
    strategy = make_strategy("pipeline", world, plan(mesh, dtype, fsdp=inside, **engine))  # type: ignore[arg-type]
    build = build or factory(dtype, recompute, **(config or {}))
    handle = strategy.prepare(Role.POLICY, build, SPEC)
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    return make_runner(strategy), handle


def in_folder(world: World, config: dict[str, Any]) -> HFModelFactory:
    """The same values, read from a folder."""
    folder = FOLDER / str(len(config))
    if world.is_main:
        factory("float64", **config)().hf.save_pretrained(folder)
    world.barrier()
    source = SimpleNamespace(config=None, **{**SECTION, "name_or_path": str(folder)})
    return HFModelFactory(source, compute_dtype=torch.float64, master_dtype=torch.float64)


def compare(
    world: World,
    reference: Reference,
    mesh: Mesh,
    dtype: str = "float64",
    accumulation: int = 4,
    recompute: bool = False,
    config: dict[str, Any] | None = None,
    folder: bool = False,
    **engine: Any,
) -> dict[str, float]:
    """The largest differences from one process over six steps and an evaluation in their middle; ``read``: of
    a ``folder``, as a share.
    """
    config = {"num_hidden_layers": 4, **(config or {})}
    expected = reference.get(dtype, **config)
    build = in_folder(world, config) if folder else None
    read = count_reads()
    runner, handle = pipeline(world, mesh, dtype, recompute, config, build, **engine)
    steps = train(runner, handle, range(SAVED), accumulation)
    evaluate(runner, handle)  # must leave no trace
    steps += train(runner, handle, range(SAVED, STEPS), accumulation)
    evaluated = evaluate(runner, handle)
    found = gathered(world, runner.strategy.export_state(handle))
    assert found.keys() == expected["parameters"].keys(), (found.keys(), expected["parameters"].keys())
    size = sum(len(values) for values in found.values()) * 8
    return {
        "read": sum(read) / size,
        "loss": max(abs(a[0] - b[0]) for a, b in zip(steps, expected["steps"], strict=True)),
        "norm": max(abs(a[1] - b[1]) for a, b in zip(steps, expected["steps"], strict=True)),
        "eval": max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(evaluated, expected["eval"], strict=True)),
        "parameters": max(
            abs(x - y)
            for name in found
            for x, y in zip(found[name], expected["parameters"][name], strict=True)
        ),
        "learnt": expected["steps"][0][0] - expected["steps"][-1][0],
        "largest_norm": max(norm for _, norm in expected["steps"]),
    }


# variants of the others
BY_HAND = frozenset({"1f1b", "gpipe", "bfloat16", "sharded bfloat16", "replicated", "four stages"})


def parity(world: World, only: str | None = None) -> dict[str, Any]:
    """Schedules and what stages are made of, by the number of ranks; ``only``: those with this in their
    names, the ones run by hand included.
    """
    n, reference, tied = world.world_size, Reference(), {"tie_word_embeddings": True}
    row = Mesh(pp=n)
    two: dict[str, dict[str, Any]] = {
        "1f1b": {"mesh": row},
        "1f1b tied recomputed": {"mesh": row, "recompute": True, "config": tied},
        "1f1b from a folder": {"mesh": row, "config": tied, "folder": True},
        "one micro-batch": {"mesh": row, "accumulation": 1},
        "gpipe": {"mesh": row, "schedule": "gpipe", "accumulation": 3},
        "interleaved tied": {
            "mesh": row,
            "schedule": "interleaved",
            "stages_per_rank": 2,
            "accumulation": 5,
            "config": tied,
        },
        "zero_bubble": {"mesh": row, "schedule": "zero_bubble", "stages_per_rank": 2, "folder": True},
        "zbv tied": {"mesh": row, "schedule": "zbv", "stages_per_rank": 2, "config": tied},
        "float32": {"mesh": row, "dtype": "float32"},
        "bfloat16": {"mesh": row, "dtype": "bfloat16", "config": tied},
    }
    sharded = Mesh(pp=2, dp_shard=2)
    four: dict[str, dict[str, Any]] = {
        "sharded": {"mesh": sharded, "config": tied, "folder": True},
        "sharded interleaved": {
            "mesh": sharded,
            "schedule": "interleaved",
            "stages_per_rank": 2,
            "recompute": True,
        },
        "sharded zbv": {"mesh": sharded, "schedule": "zbv", "stages_per_rank": 2, "config": tied},
        "sharded bfloat16": {"mesh": sharded, "dtype": "bfloat16"},
        "replicated": {"mesh": Mesh(pp=2, dp_replicate=2), "config": tied},
        "tensor": {"mesh": Mesh(pp=2, tp=2), "config": tied, "folder": True},
        "four stages": {"mesh": row, "config": tied},
    }
    eight: dict[str, dict[str, Any]] = {  # BLOOM's layout in small: stages of sharded, cut layers
        "bloom": {
            "mesh": Mesh(pp=2, dp_shard=2, tp=2),
            "config": {**tied, "vocab_size": 12},
            "sequence_parallel": True,
            "loss_parallel": True,
        },
    }
    cases = {2: two, 4: four, 8: eight}[n]
    chosen = [name for name in cases if (name not in BY_HAND if only is None else only in name)]
    return {name: compare(world, reference, **cases[name]) for name in chosen}


def whole_reader(world: World, strategy: Strategy, handle: Handle) -> MemoryReader:
    """All ranks' shares of the state in one reader, as a checkpoint on disk would give them (blocks that
    are whole tensors).
    """
    mine = [
        [
            s.role,
            s.name,
            s.kind,
            list(s.global_shape),
            str(s.tensor.dtype),
            s.tensor.double().flatten().tolist(),
        ]
        for s in strategy.export_state(handle)
    ]
    everyone = [row for rows in world.all_gather_json(mine) for row in rows]
    assert len({tuple(row[:3]) for row in everyone}) == len(everyone), "a tensor was exported twice"
    dtypes = {f"torch.{name}": getattr(torch, name) for name in ("float64", "float32", "int64")}
    return MemoryReader(
        [
            Shard(
                role,
                name,
                kind,
                tuple(shape),
                (0,) * len(shape),
                torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtypes[dtype]),
            )
            for role, name, kind, shape, dtype, values in everyone
        ]
    )


def resume(world: World) -> dict[str, Any]:
    """Three steps, export, three more; then import into a fresh model and the same three. With dropout, so
    that seeds count.
    """
    found: dict[str, Any] = {}
    config = {"num_hidden_layers": 4, "tie_word_embeddings": True, "attention_dropout": 0.1}
    for name, engine in {
        "1f1b": {},
        "zbv": {"schedule": "zbv", "stages_per_rank": 2},
    }.items():
        runner, handle = pipeline(world, Mesh(pp=2), "float32", config=config, **engine)
        train(runner, handle, range(3), 4, seeded=True)
        reader = whole_reader(world, runner.strategy, handle)
        straight = train(runner, handle, range(3, 6), 4, seeded=True)
        end = gathered(world, runner.strategy.export_state(handle))
        torch.manual_seed(999)
        runner, handle = pipeline(world, Mesh(pp=2), "float32", config=config, **engine)
        runner.strategy.import_state(handle, reader)
        again = train(runner, handle, range(3, 6), 4, seeded=True)
        root: Any = handle.root
        ends = [None if p is None else p.detach().tolist() for p in (root.tied, root.tied_copy)]
        both = [tensor for pair in world.all_gather_json(ends) for tensor in pair if tensor is not None]
        found[name] = {
            "straight": [straight, end],
            "again": [again, gathered(world, runner.strategy.export_state(handle))],
            "tied copies equal": len(both) == 2 and both[0] == both[1],
        }
    return found


def main() -> None:
    torch.set_num_threads(1)
    scenario, out = sys.argv[1], Path(sys.argv[2])
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    scenarios: dict[str, Any] = {"parity": parity, "resume": resume}
    found = {
        name: scenarios[name.partition(":")[0]](world, *name.split(":")[1:]) for name in scenario.split("+")
    }
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
