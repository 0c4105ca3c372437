"""One rank of a mixture's balance loss, and of frozen parts, under strategies:
``python router_worker.py - OUT_DIR``; writes ``OUT_DIR/<rank>.json``, (loss, balance, norm) by step for each
strategy and scope.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_stub import engine_of
from tiny_parts import make_batch

from paceline.algorithms.algorithm import TERM, WithBalanceLoss
from paceline.algorithms.supervised.sft import SFT
from paceline.models.factory import HFModelFactory
from paceline.plan.features.experts import RouterLoss
from paceline.plan.features.freezing import Freezing
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.plan import AdapterSpec, DdpOptions, OptimizerSpec, Precision
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

STEPS, ROWS, ACCUMULATION = 3, 16, 2
ADAPTER = AdapterSpec(
    r=4,
    alpha=8,
    target_modules=("q_proj",),
    target_parameters=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
)
SOURCE = SimpleNamespace(
    name_or_path=None,
    revision=None,
    trust_remote_code=False,
    resize_embeddings="never",
    embedding_multiple=1,
    config={
        "model_type": "qwen3_moe",
        "vocab_size": 11,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    },
)


def train(
    world: World,
    name: str,
    scope: str,
    recompute: bool = False,
    adapter: AdapterSpec | None = None,
    **build: bool | Freezing,
) -> list[list[float]]:
    """(nll, balance, gradient norm) by step over the same global rows, of which some are fillers."""
    mesh, name = way(name, world.world_size)
    micro = ROWS // mesh.data_parallel_size // ACCUMULATION
    plan: Any = SimpleNamespace(
        strategy=name,
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision("float32", "float32", "float32", False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(micro, ACCUMULATION, mesh.data_parallel_size),
        engine=engine_of({}, name),
        adapter=adapter,
        world_size=world.world_size,
        run_dir="",
    )
    algorithm = WithBalanceLoss(SFT(), RouterLoss(0.5, scope))
    strategy = make_strategy(name, world, plan)
    factory = HFModelFactory(SOURCE, seed=5, recompute=recompute, adapter=adapter, **build)
    handle = strategy.prepare(Role.POLICY, factory, OptimizerSpec(learning_rate=1e-2, weight_decay=0.1))
    strategy.warm_up(handle, make_batch([-1]), algorithm)
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    found = []
    for step in range(STEPS):
        starts = [step * ROWS + (j * size + rank) * micro for j in range(ACCUMULATION)]
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle}, [rows(s, micro) for s in starts], algorithm, lr=1e-2, max_grad_norm=0.5
        )
        assert result.grad_norm is not None
        found.append([result.losses["nll"], result.losses[TERM], result.grad_norm])
    strategy.close()
    return found


def way(name: str, ranks: int) -> tuple[Mesh, str]:
    """The mesh of a way, and its strategy: tensor parallelism is fsdp's."""
    if name == "tp":
        return Mesh(tp=ranks), "fsdp"
    return (Mesh(dp_replicate=ranks) if name == "ddp" else Mesh(dp_shard=ranks)), name


def rows(start: int, count: int) -> Batch:
    return make_batch([-1 if row % 8 in (4, 6) else row for row in range(start, start + count)])


def main() -> None:
    torch.set_num_threads(1)
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    names = ("single",) if world.world_size == 1 else ("ddp", "fsdp", "zero3")
    found = {name: train(world, name, "document", recompute=name in ("fsdp", "zero3")) for name in names}
    found |= {f"{name} adapter": train(world, name, "document", adapter=ADAPTER) for name in names}
    found |= {f"{name} frozen": train(world, name, "document", freeze_router=True) for name in names}
    part = Freezing(("embed_tokens", "layers.0"), ("layers.0.*norm",))
    found |= {f"{name} part": train(world, name, "document", freezing=part) for name in names}
    if world.world_size > 1:
        found |= {"tp": train(world, "tp", "document"), "tp of both": train(world, "tp", "micro_batch")}
    found["micro_batch"] = train(world, names[0], "micro_batch")
    Path(sys.argv[2], f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
