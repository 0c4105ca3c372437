"""One rank of adapter cells: ``python lora_worker.py WANTED.json OUT_DIR``; writes ``OUT_DIR/<rank>.json``, a
result by cell.

A cell: six steps with clipping, an evaluation and an answer in their midst, export, import into a fresh
engine, the last three steps again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_stub import engine_of
from tiny_parts import MemoryReader, TinyObjective, make_batch

from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.plan import AdapterSpec, DdpOptions, OptimizerSpec, Precision
from paceline.plan.plan_json import from_json
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.runtime.random_seed import seed_for
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

ROWS, ACCUMULATION, LR = 16, 2, 1.5e-3
STEPS, SAVED = 6, 3
SOURCE = SimpleNamespace(
    name_or_path=None,
    revision=None,
    trust_remote_code=False,
    resize_embeddings="never",
    embedding_multiple=1,
    config={
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    },
)


def build(world: World, cell: dict[str, Any]) -> tuple[Strategy, Handle]:
    """The strategy of a cell with its model; ``cell``: strategy, mesh, engine, compute, master, adapter,
    files (a folder in which the model is put first, and read from).
    """
    mesh = Mesh(**cell.get("mesh", {"dp_shard": world.world_size}))
    compute, master = cell.get("compute", "float32"), cell.get("master", "float32")
    plan: Any = SimpleNamespace(
        strategy=cell["strategy"],
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(compute, master, master, False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(
            ROWS // mesh.data_parallel_size // ACCUMULATION, ACCUMULATION, mesh.data_parallel_size
        ),
        engine=engine_of(cell.get("engine", {}), cell["strategy"]),
        adapter=from_json(AdapterSpec, cell["adapter"]),
        world_size=world.world_size,
        run_dir="",
    )
    source = SOURCE
    if "files" in cell:
        if world.is_main:
            HFModelFactory(SOURCE, seed=5)().hf.save_pretrained(cell["files"])
        world.barrier()
        source = SimpleNamespace(**{**vars(SOURCE), "config": None, "name_or_path": cell["files"]})
    factory = HFModelFactory(
        source,
        seed=5,
        compute_dtype=getattr(torch, compute),
        master_dtype=getattr(torch, master),
        adapter=plan.adapter,
    )
    strategy = make_strategy(plan.strategy, world, plan)
    handle = strategy.prepare(
        Role.POLICY,
        factory,
        OptimizerSpec(learning_rate=LR, weight_decay=0.1, b_rate_ratio=cell.get("b_rate_ratio", 1.0)),
    )
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    return strategy, handle


def train(strategy: Strategy, handle: Handle, steps: range) -> list[list[float]]:
    """(loss, norm) by step; the same global rows whatever the number of ranks, of very different lengths."""
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    micro = ROWS // (size * ACCUMULATION)
    found = []
    for step in steps:
        starts = [step % 3 * ROWS + (j * size + rank) * micro for j in range(ACCUMULATION)]
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            [make_batch(list(range(s, s + micro))) for s in starts],
            TinyObjective(),
            lr=10 * LR * (1 - step / 40),
            max_grad_norm=0.5,
            generator_seed=lambda j, step=step: seed_for(3, step, j, "policy", rank),  # type: ignore[misc]
        )
        assert result.grad_norm is not None
        found.append([result.losses["nll"], result.grad_norm])
    return found


def evaluate(strategy: Strategy, handle: Handle) -> float:
    """Loss over 33 rows, one rank with a micro-batch more; then an answer, ranks not alike, which must
    leave no trace.
    """
    rows = list(range(33))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    micro = [make_batch(rows[i : i + 8]) for i in range(0, len(rows), 8)]
    sums = make_runner(strategy).eval_window({Role.POLICY: handle}, micro, TinyObjective())
    with strategy.generating(handle) as root:
        model: Any = root.hf
        count = 1 + strategy.data_parallel_rank
        model.generate(torch.arange(6)[None], min_new_tokens=count, max_new_tokens=count, pad_token_id=0)
    return sums.sums["nll"] / sums.weights["nll"]


def gathered(world: World, strategy: Strategy, handle: Handle) -> MemoryReader:
    """All ranks' blocks put together, as a checkpoint on disk would give them; a hole or an overlap fails."""
    mine = [
        [
            s.name,
            s.kind,
            list(s.global_shape),
            list(s.offsets),
            list(s.tensor.shape),
            str(s.tensor.dtype),
            s.tensor.double().flatten().tolist(),
        ]
        for s in strategy.export_state(handle)
    ]
    whole: dict[tuple[str, str], torch.Tensor] = {}
    seen: dict[tuple[str, str], torch.Tensor] = {}
    for name, kind, shape, offsets, block, dtype, values in (
        row for rows in world.all_gather_json(mine) for row in rows
    ):
        key = (name, kind)
        whole.setdefault(key, torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch."))))
        place = tuple(slice(o, o + n) for o, n in zip(offsets, block, strict=True))
        whole[key][place] = torch.tensor(values, dtype=torch.float64).reshape(block).to(whole[key].dtype)
        seen.setdefault(key, torch.zeros(shape))[place] += 1
    assert all(bool((count == 1).all()) for count in seen.values()), "an element is stored twice, or never"
    return MemoryReader(
        [Shard("policy", n, k, tuple(t.shape), (0,) * t.ndim, t) for (n, k), t in whole.items()]
    )


def parameters(reader: MemoryReader) -> dict[str, list[float]]:
    return {
        n: t.double().flatten().tolist()
        for (_, n, kind), t in sorted(reader.tensors.items())
        if kind == "param"
    }


def run(world: World, cell: dict[str, Any]) -> dict[str, Any]:
    """One cell."""
    strategy, handle = build(world, cell)
    steps = train(strategy, handle, range(SAVED))
    reader = gathered(world, strategy, handle)
    found: dict[str, Any] = {"eval": evaluate(strategy, handle)}
    found["steps"] = steps + train(strategy, handle, range(SAVED, STEPS))
    found["parameters"] = parameters(gathered(world, strategy, handle))
    strategy, handle = build(world, cell)
    strategy.import_state(handle, reader)
    found["again"] = train(strategy, handle, range(SAVED, STEPS))
    found["parameters_again"] = parameters(gathered(world, strategy, handle))
    return found


def main() -> None:
    torch.set_num_threads(1)
    cells, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    found: dict[str, Any] = {}
    for name, cell in cells.items():
        try:
            found[name] = run(world, cell)
        except Exception as error:
            raise RuntimeError(f"cell {name}") from error
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
