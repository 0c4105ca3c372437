"""One rank of preference cells: ``python preference_worker.py WANTED.json OUT_DIR``; writes
``OUT_DIR/<rank>.json``, a result by cell.

A cell: eight steps with clipping and an evaluation of unlike shares in their midst, of a reward model or DPO
with a reference of its own or without the adapter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_stub import engine_of
from lora_worker import LR, SOURCE, gathered, parameters

from paceline.core.plugins.tables import ALGORITHMS
from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.plan import AdapterSpec, DdpOptions, OptimizerSpec, Precision
from paceline.plan.plan_json import from_json
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

PAIRS, ACCUMULATION, STEPS, HELD_OUT = 8, 2, 8, 19
VOCAB = 32


def pair_batch(pairs: list[int]) -> Batch:
    """Pairs by number, each half of 4 to 12 tokens after a prompt of 2: chosen ones count upwards,
    rejected ones are random. -1 is a filler.
    """
    documents, labels, ids, margins = [], [], [], []
    for pair in pairs:
        random = torch.Generator().manual_seed(max(pair, 0))
        for half in range(2):
            length = 2 if pair < 0 else 4 + (pair * 5 + 3 * half) % 9
            tokens = torch.randint(0, VOCAB, (length,), generator=random)
            if half == 0:
                tokens[2:] = (tokens[1] + torch.arange(1, length - 1)) % VOCAB
            target = torch.cat([tokens[1:], torch.tensor([IGNORE_INDEX])])
            target[: 1 if pair >= 0 else length] = IGNORE_INDEX
            documents.append(tokens)
            labels.append(target)
            ids.append(2 * pair + half if pair >= 0 else -1)
            margins.append(0.25 * (pair % 3) if pair >= 0 else 0.0)
    bounds = torch.tensor([0, *map(len, documents)]).cumsum(0).to(torch.int32)
    return Batch(
        torch.cat(documents)[None],
        torch.cat(labels)[None],
        torch.cat([torch.arange(len(d)) for d in documents])[None],
        bounds,
        max(map(len, documents)),
        torch.tensor(ids),
        sum(pair >= 0 for pair in pairs),
        group=2,
        extras={"margin": torch.tensor(margins, dtype=torch.float64)},
    )


def build(world: World, cell: dict[str, Any]) -> tuple[Strategy, dict[Role, Handle], Any]:
    """Strategy, models and algorithm of a cell; ``cell``: algorithm, options, strategy, mesh, engine,
    dtype, adapter.
    """
    mesh = Mesh(**cell.get("mesh", {"dp_shard": world.world_size}))
    dtype = cell.get("dtype", "float32")
    plan: Any = SimpleNamespace(
        strategy=cell["strategy"],
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(dtype, dtype, dtype, False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(
            PAIRS // mesh.data_parallel_size // ACCUMULATION, ACCUMULATION, mesh.data_parallel_size
        ),
        engine=engine_of(cell.get("engine", {}), cell["strategy"]),
        adapter=cell.get("adapter"),
        world_size=world.world_size,
        run_dir="",
    )

    def factory(role: Role, frozen: bool) -> HFModelFactory:
        adapter = None if frozen or plan.adapter is None else from_json(AdapterSpec, plan.adapter)
        return HFModelFactory(
            SOURCE,
            role,
            seed=5,
            compute_dtype=getattr(torch, dtype),
            master_dtype=getattr(torch, dtype),
            adapter=adapter,
            frozen=frozen,
        )

    algorithm = ALGORITHMS.load(cell["algorithm"])(**cell.get("options", {}))
    strategy = make_strategy(plan.strategy, world, plan)
    spec = OptimizerSpec(learning_rate=LR, weight_decay=0.1)
    handles = {role: strategy.prepare(role, factory(role, False), spec) for role in algorithm.trains}
    for role in algorithm.trains:
        strategy.warm_up(handles[role], pair_batch([-1]), algorithm)
    for role in algorithm.frozen:
        handles[role] = strategy.prepare(role, factory(role, True), None)
    return strategy, handles, algorithm


def train(
    strategy: Strategy, handles: dict[Role, Handle], algorithm: Any, steps: range
) -> list[dict[str, float]]:
    """Loss, norm and statistics by step; the same global pairs whatever the number of ranks. In every
    third step one pair is a filler.
    """
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    micro = PAIRS // (size * ACCUMULATION)
    found = []
    for step in steps:
        batches = []
        for j in range(ACCUMULATION):
            places = range((j * size + rank) * micro, (j * size + rank + 1) * micro)
            batches.append(
                pair_batch([-1 if step % 3 == 2 and p == PAIRS - 1 else step % 4 * PAIRS + p for p in places])
            )
        result = make_runner(strategy).train_window(
            handles, batches, algorithm, lr=5 * LR * (1 - step / 40), max_grad_norm=0.5
        )
        assert result.grad_norm is not None
        found.append(
            {"loss": sum(result.losses.values()), "norm": result.grad_norm, **result.extras, **result.weights}
        )
    return found


def evaluate(strategy: Strategy, handles: dict[Role, Handle], algorithm: Any) -> dict[str, float]:
    """Every sum over ``HELD_OUT`` pairs, of which the last rank has one micro-batch less and a filler."""
    own = list(range(100, 100 + HELD_OUT))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    batches = [pair_batch(own[i : i + 4]) for i in range(0, len(own), 4)]
    if strategy.data_parallel_rank + 1 == strategy.data_parallel_size:
        batches[-1] = pair_batch([*own[len(own) // 4 * 4 :], -1]) if len(own) % 4 else batches[-1]
    sums = make_runner(strategy).eval_window(handles, batches, algorithm)
    assert sums.rows == HELD_OUT
    return dict(sums.sums)


def run(world: World, cell: dict[str, Any]) -> dict[str, Any]:
    """One cell."""
    strategy, handles, algorithm = build(world, cell)
    steps = train(strategy, handles, algorithm, range(STEPS // 2))
    held_out = evaluate(strategy, handles, algorithm)
    steps += train(strategy, handles, algorithm, range(STEPS // 2, STEPS))
    trained = parameters(gathered(world, strategy, handles[algorithm.trains[0]]))
    strategy.close()
    return {"steps": steps, "eval": held_out, "parameters": trained}


def main() -> None:
    torch.set_num_threads(1)
    cells, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    alone = World.single()
    found: dict[str, Any] = {}
    for name, cell in cells.items():
        try:
            found[name] = run(alone if cell["strategy"] == "single" else world, cell)
        except Exception as error:
            raise RuntimeError(f"cell {name}") from error
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
