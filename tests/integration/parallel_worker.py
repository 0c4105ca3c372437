"""One rank of the scenarios of tensor and context parallelism:
``python parallel_worker.py SCENARIO[+…] OUT_DIR``; writes ``OUT_DIR/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsdp_worker
import torch
from fsdp_worker import SAVED, STEPS
from parallel_pieces import attention, context, generation, head, refusals, tensor
from tiny_parts import TinyObjective
from tiny_parts import make_batch as tiny_batch

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.plan.mesh import Mesh
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.window.runner import make_runner

TRAINED = {"vocab_size": 12, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
BOTH = {"sequence_parallel": True, "loss_parallel": True}


def trained(
    world: World, name: str, mesh: Mesh, dtype: str = "float64", recompute: bool = False, **engine: Any
) -> dict[str, Any]:
    """The steps of ``fsdp_worker``, then an evaluation over rows that do not divide, and the whole
    parameters.
    """
    strategy, handle = fsdp_worker.build(
        world, name, mesh, fsdp_worker.factory(dtype, recompute, **TRAINED), dtype, **engine
    )
    steps = fsdp_worker.train(strategy, handle, range(STEPS))
    rows = list(range(23))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    found = make_runner(strategy).eval_window(
        {Role.POLICY: handle}, [tiny_batch(rows[:7]), tiny_batch(rows[7:] or [-1])], TinyObjective()
    )
    return {
        "steps": steps,
        "eval": {"sums": dict(found.sums), "weights": dict(found.weights), "rows": found.rows},
        "parameters": fsdp_worker.gathered(world, strategy.export_state(handle)),
    }


SOME = ("tp", "tp sp lp", "ulysses", "allgather bfloat16")


def parity(world: World, names: Sequence[str] = ()) -> dict[str, Any]:
    """Alone: the references. On 2 ranks every way to cut, or those with ``names``; on 4 the ways to cut
    twice.
    """
    if world.world_size == 1:
        return {
            dtype: trained(world, "single", Mesh(), dtype) for dtype in ("float64", "float32", "bfloat16")
        }
    tp, cp = Mesh(tp=2), Mesh(cp=2)
    runs: dict[str, tuple[Mesh, str, bool, dict[str, Any]]] = {
        "tp": (tp, "float64", False, {}),
        "tp sp": (tp, "float64", True, {"sequence_parallel": True}),
        "tp sp lp": (tp, "float64", True, BOTH),
        "tp sp lp float32": (tp, "float32", False, BOTH),
        "tp sp lp bfloat16": (tp, "bfloat16", False, BOTH),
        "ulysses": (cp, "float64", True, {"cp_method": "ulysses"}),
        "allgather": (cp, "float64", False, {"cp_method": "allgather"}),
        "allgather bfloat16": (cp, "bfloat16", True, {"cp_method": "allgather"}),
    }
    if world.world_size == 4:
        runs = {
            "tp fsdp": (Mesh(dp_shard=2, tp=2), "float64", True, BOTH),
            "cp fsdp": (Mesh(dp_shard=2, cp=2), "float64", True, {"cp_method": "allgather"}),
            "cp tp": (Mesh(cp=2, tp=2), "float64", False, {"cp_method": "ulysses", **BOTH}),
        }
    return {
        k: trained(world, "fsdp", mesh, dtype, again, **engine)
        for k, (mesh, dtype, again, engine) in runs.items()
        if k in (names or runs)
    }


def state(world: World, out: Path) -> dict[str, Any]:
    """Three steps, save, three more; a new model from the checkpoint and the same three. Ranks of a tp group
    decode alike in between.
    """
    mesh = Mesh(dp_shard=world.world_size // 2, tp=2)
    factory = fsdp_worker.factory("float32", **TRAINED)
    strategy, handle = fsdp_worker.build(world, "fsdp", mesh, factory, "float32", **BOTH)
    fsdp_worker.train(strategy, handle, range(SAVED))
    run = RunDir.at(out / "run")
    files = {"config.json": json.dumps(factory.hf_config).encode()}
    path = Checkpointer(run, world).save(SAVED, strategy.export_state(handle), {"step": SAVED}, files)
    with strategy.generating(handle) as root:
        said = root.hf.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=6, do_sample=False, pad_token_id=0)[
            0
        ].tolist()
    straight = [fsdp_worker.train(strategy, handle, range(SAVED, STEPS)), fsdp_worker.held(strategy, handle)]
    strategy, handle = fsdp_worker.build(world, "fsdp", mesh, factory, "float32", **BOTH)
    with CheckpointReader(path) as reader:
        strategy.import_state(handle, reader)
    again = [fsdp_worker.train(strategy, handle, range(SAVED, STEPS)), fsdp_worker.held(strategy, handle)]
    whole = factory()
    with CheckpointReader(path) as reader, torch.no_grad():
        for name, parameter in whole.plain_named_parameters():
            parameter.copy_(reader.read("policy", name, "param"))
    alone = whole.eval().hf.generate(
        torch.tensor([[3, 1, 4]]), max_new_tokens=6, do_sample=False, pad_token_id=0
    )
    return {"equal": straight == again, "blocks": len(again[1]), "said": said, "alone": alone[0].tolist()}


def main() -> None:
    torch.set_num_threads(1)
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    scenarios = {
        "tensor": tensor,
        "head": head,
        "refusals": refusals,
        "generation": generation,
        "attention": attention,
        "context": context,
        "parity": parity,
        "some parity": lambda world: parity(world, SOME),
        "state": lambda world: state(world, Path(sys.argv[2])),
    }
    found = {name: scenarios[name](world) for name in sys.argv[1].split("+")}
    (Path(sys.argv[2]) / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
