"""One rank of FSDP scenarios on a real (tiny) model:
``python fsdp_worker.py SCENARIO[+SCENARIO…] OUT_DIR``; writes ``OUT_DIR/<rank>.json``.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from count_reads import count_reads
from engine_stub import engine_of
from tiny_parts import TinyObjective, make_batch
from torch.distributed.tensor import DTensor

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh
from paceline.plan.plan import DdpOptions, OptimizerSpec, Precision
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

SPEC = OptimizerSpec(learning_rate=1e-3, weight_decay=0.1)
STEPS, SAVED, ROWS = 6, 3, 16
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
WIDE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "vocab_size": 1000}
SECTION: dict[str, Any] = {
    "name_or_path": None,
    "revision": None,
    "trust_remote_code": False,
    "resize_embeddings": "auto",
    "embedding_multiple": 1,
}
FOLDER = Path(sys.argv[-1]) / "model"
COMPUTE = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def factory(dtype: str, recompute: bool = False, **config: Any) -> HFModelFactory:
    return HFModelFactory(
        SimpleNamespace(config={**LLAMA, **config}, **SECTION),
        seed=5,
        compute_dtype=COMPUTE[dtype],
        master_dtype=torch.float64 if dtype == "float64" else torch.float32,
        recompute=recompute,
    )


def plan(mesh: Mesh, dtype: str = "float64", **engine: Any) -> SimpleNamespace:
    wide = "float64" if dtype == "float64" else "float32"
    return SimpleNamespace(
        strategy="single",
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(dtype, wide, wide, dtype == "float16", "a test"),
        num_nodes=1,
        mesh=mesh,
        engine=engine_of(engine),
        batch=SimpleNamespace(accumulation=2),
        adapter=None,
    )


def window(step: int, rank: int, size: int, accumulation: int = 2) -> list[Batch]:
    """The rank's micro-batches: the same global rows whatever the number of ranks. Rows have 3 to 9 tokens,
    and three of eight are fillers in a row, so that some ranks have few labels or none."""
    micro = ROWS // (size * accumulation)
    starts = [step * ROWS + (j * size + rank) * micro for j in range(accumulation)]
    return [make_batch([-1 if 4 <= row % 8 < 7 else row for row in range(s, s + micro)]) for s in starts]


def build(
    world: World, name: str, mesh: Mesh, build: HFModelFactory, dtype: str, **engine: Any
) -> tuple[Strategy, Handle]:
    strategy = make_strategy(name, world, plan(mesh, dtype, **engine))  # type: ignore[arg-type]
    handle = strategy.prepare(Role.POLICY, build, SPEC)
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    return strategy, handle


def train(strategy: Strategy, handle: Handle, steps: range) -> list[dict[str, Any]]:
    found = []
    for step in steps:
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            window(step, strategy.data_parallel_rank, strategy.data_parallel_size),
            TinyObjective(),
            lr=2e-3 * (1 - step / 40),
            max_grad_norm=0.5,
        )
        found.append({"loss": result.losses["nll"], "norm": result.grad_norm, "tokens": result.tokens})
    return found


def gathered(world: World, shards: Iterator[Shard]) -> dict[str, list[float]]:
    """The whole parameters, put together from all ranks' shards; every element must come from exactly one."""
    mine = [
        [
            s.name,
            list(s.global_shape),
            list(s.offsets),
            list(s.tensor.shape),
            base64.b64encode(s.tensor.double().cpu().contiguous().numpy().tobytes()).decode(),
        ]
        for s in shards
        if s.kind == "param"
    ]
    whole: dict[str, torch.Tensor] = {}
    times: dict[str, torch.Tensor] = {}
    for name, shape, offsets, size, values in (row for rows in world.all_gather_json(mine) for row in rows):
        place = tuple(slice(o, o + n) for o, n in zip(offsets, size, strict=True))
        piece = torch.from_numpy(np.frombuffer(base64.b64decode(values)).copy())
        whole.setdefault(name, torch.zeros(shape, dtype=torch.float64))[place] = piece.view(size)
        times.setdefault(name, torch.zeros(shape))[place] += 1
    assert all(bool((t == 1).all()) for t in times.values()), "an element was exported twice, or never"
    return {name: tensor.flatten().tolist() for name, tensor in whole.items()}


def one_run(
    world: World, name: str, mesh: Mesh, build_from: HFModelFactory, dtype: str, **engine: Any
) -> dict[str, Any]:
    strategy, handle = build(world, name, mesh, build_from, dtype, **engine)
    steps = train(strategy, handle, range(STEPS))
    return {
        "steps": steps,
        "start": handle.root.notes().get("start"),
        "parameters": gathered(world, strategy.export_state(handle)),
    }


def parity(world: World) -> dict[str, Any]:
    """Six steps under the ways to shard; rank 0 also trains alone. By name; what follows the slash names
    the run alone to compare with.
    """
    n = world.world_size
    flat, copies, half = Mesh(dp_shard=n), Mesh(dp_replicate=n), Mesh(dp_replicate=2, dp_shard=n // 2)
    ways: dict[str, tuple[Mesh, dict[str, Any]]] = {
        "full_shard/float64": (flat, {"whole_gradient_bytes": 0}),
        "shard_grad_op/float64": (flat, {"sharding": "shard_grad_op"}),
    }
    if n == 2:
        ways |= {
            "recompute/float64": (
                flat,
                {"wrap": {"policy": "size", "min_num_params": 3000}, "forward_prefetch": True},
            ),
            "offload/bfloat16": (
                flat,
                {"cpu_offload": True, "meta_start": True, "backward_prefetch": "none"},
            ),
            "meta/tied": (flat, {"meta_start": True}),
            "meta/grown": (flat, {"meta_start": True}),
        }
    else:
        ways |= {
            "no_shard/float64": (copies, {"sharding": "no_shard"}),
            "hybrid_shard/float64": (
                half,
                {"sharding": "hybrid_shard", "meta_start": True, "whole_gradient_bytes": 0},
            ),
            "hybrid_shard_zero2/float64": (half, {"sharding": "hybrid_shard_zero2"}),
        }
    if world.is_main:
        factory("float64")().hf.save_pretrained(FOLDER)
    world.barrier()
    found = {}
    for name, (mesh, engine) in ways.items():
        made, dtype = of_kind(name)
        found[name] = one_run(world, "fsdp", mesh, made, dtype, **engine)
    alone = {}
    if world.is_main:
        for kind in sorted({name.partition("/")[2] for name in ways}):
            made, dtype = of_kind(f"alone/{kind}")
            alone[kind] = one_run(World.single(), "single", Mesh(), made, dtype)
    world.barrier()
    return {"found": found, "alone": alone}


def of_kind(name: str) -> tuple[HFModelFactory, str]:
    """The model of a run, and its dtype."""
    way, _, kind = name.partition("/")
    dtype = "float64" if kind in ("tied", "grown") else kind
    if kind == "grown":
        source = SimpleNamespace(config=None, **{**SECTION, "name_or_path": str(FOLDER)})
        wide = {"compute_dtype": torch.float64, "master_dtype": torch.float64}
        return HFModelFactory(source, vocab_size=16, **wide), dtype  # type: ignore[arg-type]
    return factory(dtype, way == "recompute", tie_word_embeddings=kind == "tied"), dtype


def saved(world: World, out: Path, strategy: Strategy, handle: Handle) -> Path:
    """A checkpoint as the program writes it."""
    run = RunDir.at(out / "run")
    files = {"config.json": json.dumps(factory("float32").hf_config).encode()}
    return Checkpointer(run, world).save(SAVED, strategy.export_state(handle), {"step": SAVED}, files)


def logits(strategy: Strategy, handle: Handle, *, together: bool = False) -> tuple[list[float], int]:
    """Of a few tokens, by the whole model while training pauses, or by all ranks together; ranks ask at
    different lengths, as when they decode. Also how many parameters a rank holds whole meanwhile."""
    strategy.collective_decoding = together
    with strategy.generating(handle) as root:
        ids = torch.arange(2 + strategy.world.rank)[None] % 11
        for _ in range(2):
            found = root.hf(input_ids=ids).logits[0, :2]  # type: ignore[operator, union-attr]
        whole = sum(not isinstance(parameter, DTensor) for parameter in root.parameters())
    return found.flatten().tolist(), whole


def state(world: World, out: Path) -> dict[str, Any]:
    """Three steps, save, three more; on four ranks a new model from the checkpoint and the same three (two
    do it through the program). Evaluation and decoding in between leave no trace.
    """
    n = world.world_size
    mesh = Mesh(dp_shard=n) if n == 2 else Mesh(dp_replicate=2, dp_shard=n // 2)
    strategy, handle = build(world, "fsdp", mesh, factory("float32"), "float32")
    train(strategy, handle, range(SAVED))
    bytes_held = handle.state_bytes()
    path = saved(world, out, strategy, handle)
    said, whole = logits(strategy, handle)
    together, root_only = logits(strategy, handle, together=True)
    rows = list(range(99))[strategy.data_parallel_rank :: n]
    micro = [make_batch(rows[i : i + 8]) for i in range(0, len(rows), 8)]
    micro += [make_batch([-1])] * (world.rank == n - 1)
    sums = make_runner(strategy).eval_window({Role.POLICY: handle}, micro, TinyObjective())
    straight = {"steps": train(strategy, handle, range(SAVED, STEPS)), "blocks": held(strategy, handle)}
    again = None
    if n > 2:
        strategy, handle = build(world, "fsdp", mesh, factory("float32"), "float32")
        with CheckpointReader(path) as reader:
            strategy.import_state(handle, reader)
        again = {"steps": train(strategy, handle, range(SAVED, STEPS)), "blocks": held(strategy, handle)}
    return {
        "straight": straight,
        "again": again,
        "logits": said,
        "together": together,
        "whole": (whole, root_only),
        "checkpoint": str(path),
        "bytes": bytes_held,
        "eval": {"sums": dict(sums.sums), "weights": dict(sums.weights), "rows": sums.rows},
    }


def start(world: World, out: Path) -> dict[str, Any]:
    """A policy and a frozen reference of the folder ``WIDE``: what each rank reads of it, in bytes."""
    wide, folder = {**LLAMA, **WIDE}, out / "wide"
    if world.is_main:
        HFModelFactory(SimpleNamespace(config=wide, **SECTION))().hf.save_pretrained(folder)
    world.barrier()
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    read = count_reads()
    mesh = Mesh(dp_shard=world.world_size)
    strategy = make_strategy("fsdp", world, plan(mesh, "float32", meta_start=True))  # type: ignore[arg-type]
    source = SimpleNamespace(config=None, **{**SECTION, "name_or_path": str(folder)})
    policy = strategy.prepare(Role.POLICY, HFModelFactory(source), SPEC)
    reference = strategy.prepare(Role.REFERENCE, HFModelFactory(source, frozen=True), None)
    shards = [dict(handle.root.named_parameters()) for handle in (policy, reference)]
    equal = all(
        torch.equal(a.to_local(), shards[1][name].to_local())  # type: ignore[attr-defined]
        for name, a in shards[0].items()
    )
    finite = all(bool(p.to_local().isfinite().all()) for p in shards[0].values())  # type: ignore[attr-defined]
    return {"size": size, "read": sum(read), "equal": equal and finite}


def held(strategy: Strategy, handle: Handle) -> dict[str, list[float]]:
    """Everything this rank would write."""
    return {
        f"{s.name}|{s.kind}|{s.offsets}": s.tensor.double().flatten().tolist()
        for s in strategy.export_state(handle)
    }


def main() -> None:
    torch.set_num_threads(1)
    scenario, out = sys.argv[1], Path(sys.argv[2])
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    scenarios = {
        "parity": parity,
        "state": lambda world: state(world, out),
        "start": lambda world: start(world, out),
    }
    found = {name: scenarios[name](world) for name in scenario.split("+")}
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
