"""One rank of layers that are compiled, or recomputed but for what is kept: ``python compile_worker.py
SCENARIO[+…] OUT_DIR``; writes ``OUT_DIR/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsdp_worker
import torch
from torch._dynamo.utils import counters

from paceline.models.factory import HFModelFactory
from paceline.plan.mesh import Mesh
from paceline.runtime.process_group.world import RankEnv, World, environment

TRAINED = {"vocab_size": 12, "tie_word_embeddings": True}
BOTH = {"sequence_parallel": True, "loss_parallel": True}


def factory(dtype: str, recompute: bool, backend: str | None) -> HFModelFactory:
    return HFModelFactory(
        SimpleNamespace(config={**fsdp_worker.LLAMA, **TRAINED}, **fsdp_worker.SECTION),
        seed=5,
        compute_dtype=fsdp_worker.COMPUTE[dtype],
        master_dtype=torch.float64 if dtype == "float64" else torch.float32,
        recompute=recompute,
        recompute_keeps=("attention", "matmul") if backend == "keep" else (),
        compile=backend not in (None, "keep"),
        compile_options={} if backend in (None, "keep") else {"backend": backend},
    )


def trained(
    world: World, name: str, mesh: Mesh, dtype: str, backend: str | None, again: bool, **engine: Any
) -> dict[str, Any]:
    """Six steps, of rows of other lengths in each micro-batch; the graphs that were compiled in the
    first and in all six.
    """
    torch._dynamo.reset()
    counters.clear()
    strategy, handle = fsdp_worker.build(world, name, mesh, factory(dtype, again, backend), dtype, **engine)
    steps = fsdp_worker.train(strategy, handle, range(1))
    first = counters["stats"]["unique_graphs"]
    steps += fsdp_worker.train(strategy, handle, range(1, fsdp_worker.STEPS))
    return {
        "steps": steps,
        "graphs": [first, counters["stats"]["unique_graphs"]],
        "note": handle.root.notes().get("compile", ""),
        "parameters": fsdp_worker.gathered(world, strategy.export_state(handle)),
    }


def main() -> None:
    torch.set_num_threads(1)
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    flat, copies, tp = Mesh(dp_shard=2), Mesh(dp_replicate=2), Mesh(tp=2)
    ways: dict[str, tuple[str, Mesh, bool, dict[str, Any]]] = {
        "ddp": ("ddp", copies, False, {}),
        "fsdp": ("fsdp", flat, False, {"whole_gradient_bytes": 0}),
        "fsdp recompute": ("fsdp", flat, True, {}),
        "tp": ("fsdp", tp, False, {}),
        "tp sp lp": ("fsdp", tp, True, BOTH),
    }
    found: dict[str, Any] = {}
    for asked in sys.argv[1].split("+"):
        way, _, kind = asked.partition("/")
        dtype, _, backend = kind.partition("/")
        name, mesh, again, engine = ways[way.replace("_", " ")]
        found[asked] = {
            "plain": trained(world, name, mesh, dtype, None, again, **engine),
            "changed": trained(world, name, mesh, dtype, backend, again or backend == "keep", **engine),
        }
    (Path(sys.argv[2]) / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
