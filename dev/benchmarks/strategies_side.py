"""Both sides of ``strategies.py`` in one process group: ``strategies_side.py STRATEGY PAIRS OUT`` under
torchrun; one JSON a rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from trunk import Source, make_batch

from paceline.algorithms.supervised.sft import SFT
from paceline.config.schema import Config
from paceline.models.factory import HFModelFactory
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.strategies.spec import Job
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

LLAMA = {
    "model_type": "llama",
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 1024,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
ACCUMULATION, MICRO, SEQ, LR, CLIP, WARM_UP = 2, 2, 256, 1e-3, 1.0, 2
ASK = frozenset({Output.NLL})
Step = Callable[[Sequence[Batch]], float]


def ours(name: str, world: World) -> Step:
    """Paceline's strategy under its own window."""
    config = Config.from_json(
        {
            "model": {"config": LLAMA, "tokenizer": "none"},
            "data": {"train": [{"path": "none"}], "max_length": SEQ},
            "training": {
                "distributed_strategy": name,
                "per_device_train_batch_size": MICRO,
                "gradient_accumulation_steps": ACCUMULATION,
                "learning_rate": LR,
                "use_cpu": True,
                "mixed_precision": "no",
                "optim": "adamw_torch",
            },
        }
    )
    hardware = probe_hardware({}, use_cpu=True, num_nodes=1)
    plan = make_plan(Job(config, hardware, world_size=world.world_size, launcher="torchrun", run_dir="none"))
    strategy, algorithm = make_strategy(plan.strategy, world, plan), SFT()
    runner = make_runner(strategy)
    handle = strategy.prepare(Role.POLICY, HFModelFactory(Source(LLAMA)), plan.optimizer)
    handles = {Role.POLICY: handle}

    def step(batches: Sequence[Batch]) -> float:
        result = runner.train_window(handles, batches, algorithm, lr=LR, max_grad_norm=CLIP)
        return sum(result.losses.values())

    return step


def optimizer_of(module: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=0.0)


def global_labels(world: World, batches: Sequence[Batch]) -> int:
    return world.all_reduce_sum([sum(int(b.num_labels()) for b in batches)])[0]


def accelerate_side(name: str, world: World) -> Step:
    """The same module prepared by Accelerate and trained as its documentation shows, with the exact token
    mean.
    """
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FSDPModule

    module: Any = HFModelFactory(Source(LLAMA))()
    plugin = None
    if name == "fsdp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    if (
        plugin is not None
    ):  # Accelerate shards on accelerators only: on a CPU it takes the plugin and replicates, without a word
        accelerator.state.fsdp_plugin, accelerator.state.distributed_type = plugin, DistributedType.FSDP
    model, optimizer = accelerator.prepare(module, optimizer_of(module))
    assert isinstance(model, FSDPModule) == (name == "fsdp")

    def step(batches: Sequence[Batch]) -> float:
        labels, total = global_labels(world, batches), 0.0
        for batch in batches:
            with accelerator.accumulate(model):
                nll = model(batch, ASK)["nll"]
                accelerator.backward(nll * (ACCUMULATION * world.world_size / labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
                total += float(nll.detach())
        return world.all_reduce_sum_float([total])[0] / labels

    return step


def deepspeed_side(name: str, world: World) -> Step:
    """The same module under a bare DeepSpeed engine."""
    import deepspeed

    module: Any = HFModelFactory(Source(LLAMA))()
    stage = int(name[-1])
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": ACCUMULATION,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": CLIP,
        "steps_per_print": 10**9,
    }
    if stage == 3:
        from paceline.models.fused_layers.swiglu import FusedSwiGLU

        deepspeed.utils.set_z3_leaf_modules(
            module, [type(m) for m in module.modules() if isinstance(m, FusedSwiGLU)][:1]
        )
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer_of(module), config=config)

    def step(batches: Sequence[Batch]) -> float:
        labels, total = global_labels(world, batches), 0.0
        for batch in batches:
            nll = engine(batch, ASK)["nll"]
            engine.backward(nll * (ACCUMULATION * world.world_size / labels))
            engine.step()
            total += float(nll.detach())
        return world.all_reduce_sum_float([total])[0] / labels

    return step


def main() -> None:
    """Warm up, then pairs of steps in turn, each side first in every second pair."""
    name, pairs, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    env = RankEnv.from_environ(environment())
    world = World.open(env, device="cpu", backend="gloo", timeout_seconds=300)
    theirs = deepspeed_side(name, world) if name.startswith("zero") else accelerate_side(name, world)
    sides = {"ours": ours(name, world), "theirs": theirs}
    times: dict[str, list[float]] = {side: [] for side in sides}
    losses: dict[str, float] = {}
    for pair in range(WARM_UP + pairs):
        batches = [make_batch(MICRO, 1000 * pair + 10 * world.rank + j, SEQ) for j in range(ACCUMULATION)]
        for side in list(sides) if pair % 2 else reversed(list(sides)):
            world.barrier()
            started = time.process_time()
            losses[side] = sides[side](batches)
            if pair >= WARM_UP:
                times[side].append(time.process_time() - started)
    data = {**times, "losses": [losses["ours"], losses["theirs"]]}
    out.with_suffix(f".{world.rank}.json").write_text(json.dumps(data))
    world.close(ok=True)


if __name__ == "__main__":
    main()
