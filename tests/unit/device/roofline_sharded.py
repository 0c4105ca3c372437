"""One rank of FSDP on the roofline: the real strategy in a pretended world, its kernels and its links' bytes.

    PYTHONPATH=. python tests/unit/device/roofline_sharded.py [llama-3-8b | qwen2.5-0.5b | gemma-2-2b]

Collectives are no kernels' work here: they take their bytes times (n - 1) / n at 80 % of an NVLink's
450 GB/s, beside the kernels. Hidden behind them a step takes the longer of the two; the sum is the upper end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from torch._subclasses.fake_tensor import FakeTensorMode

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))

import roofline
from emulated_device import emulated
from emulated_kernels import OWN
from emulated_rules import Emulation
from roofline import DEPTHS, WINDOWS, WITHOUT_NUMBERS, Roofline
from roofline_flex import visible_and_counted

from paceline.algorithms.algorithm import algorithm_class
from paceline.config.schema import Config
from paceline.models.attention.flex_attention import VisibleKeys
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import named_config
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.model import BuildOptions, RootModule
from paceline.protocols.roles import Role
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import World
from paceline.simulate.counting import Collectives, FakeValues
from paceline.simulate.model import FakeFactory
from paceline.simulate.run import another_machine
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

RANKS, LINK = 8, 0.8 * 450e9


@dataclass(frozen=True)
class Rank:
    """One rank's window: its kernels, and bytes of whole tensors in its collectives."""

    roofline: Roofline
    bytes: float

    def at(self, other: Rank, share: float) -> Rank:
        """On the line through this and ``other``, ``share`` of the way."""
        return Rank(self.roofline.at(other.roofline, share), self.bytes + (other.bytes - self.bytes) * share)

    @property
    def links(self) -> float:
        """Seconds of the collectives."""
        return self.bytes * (RANKS - 1) / RANKS / LINK


def _plan(model: Mapping[str, Any], documents: int) -> Plan:
    training = {
        "distributed_strategy": "fsdp",
        "mixed_precision": "bf16",
        "per_device_train_batch_size": documents,
    }
    data = {"train": "none.jsonl", "max_length": 64}
    config = Config.model_validate(
        {"model": {"config": dict(model), "tokenizer": "none"}, "data": data, "training": training}
    )
    hardware = replace(cluster_of(f"{RANKS}xH100").hardware(), uncompiled="")
    plan = make_plan(Job(config, hardware, world_size=RANKS, launcher="torchrun", run_dir="none"))
    assert plan.engine.sharded is not None
    return replace(plan, engine=replace(plan.engine, meta_start=False))  # every rank builds


def window(model: Mapping[str, Any], tokens: int, documents: int) -> Rank:
    """The second window of ``sft`` in bf16 on rank 0, one micro-batch."""
    plan = _plan(model, documents)
    found, sent, batch = Roofline(), Collectives(), roofline.documents_batch(tokens, documents)
    visible = visible_and_counted(batch.cu_seqlens.tolist())
    with ExitStack() as stack:
        stack.enter_context(another_machine())
        stack.enter_context(mock.patch.dict(OWN, WITHOUT_NUMBERS))
        stack.enter_context(mock.patch.object(VisibleKeys, "of", visible))
        machine = stack.enter_context(emulated(count=RANKS))
        world = World.pretend(RANKS)
        stack.callback(world.close, ok=True)
        world.device = machine.device
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        factory = FakeFactory(plan, model, mode)

        def build(options: BuildOptions) -> RootModule:
            module = factory(options)
            roofline.move_onto(module, machine)
            roofline.size_head(module, machine)
            return module

        strategy = make_strategy("fsdp", world, plan)
        handles = {Role.POLICY: strategy.prepare(Role.POLICY, build, plan.optimizer)}
        for context in (mode, FakeValues(), roofline.Answers(), Emulation(machine)):
            stack.enter_context(context)
        runner, algorithm = make_runner(strategy), algorithm_class("sft")()

        def train() -> None:
            runner.train_window(
                handles, [batch], algorithm, lr=1e-4, max_grad_norm=1.0, generator_seed=lambda j: j
            )

        train()  # makes what later ones reuse
        with roofline.counting_kernels(found), sent:
            train()
        for name in [
            n for n in found.seconds if n.startswith(("_allgather", "_reduce_scatter", "allreduce"))
        ]:
            del found.seconds[name]
        return Rank(found, sum(sent.bytes.values()))


def whole(name: str) -> Rank:
    """One rank's window of the model called ``name`` in WINDOWS."""
    config = dict(named_config(name))
    few, more = (window({**config, "num_hidden_layers": n}, *WINDOWS[name]) for n in DEPTHS)
    return few.at(more, (int(config["num_hidden_layers"]) - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0]))


def main() -> None:
    """Print the table."""
    for name in sys.argv[1:] or WINDOWS:
        rank = whole(name)
        line = rank.roofline
        print(
            f"{name}, a rank of FSDP over {RANKS}: kernels {line.step * 1e3:,.0f} ms, links "
            f"{rank.links * 1e3:,.0f} ms beside them ({rank.bytes / 1e9:,.0f} GB)"
        )
        longest = [f"{op} {seconds * 1e3:,.0f}" for op, seconds in line.seconds.most_common(10)]
        print("    ms by operation: " + ", ".join(longest), flush=True)


if __name__ == "__main__":
    main()
