"""ZeRO++'s second copy of the weights (hpZ) is part of the plan's memory, and named."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_shape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan


def plan_of(size: int, stage: int = 3, **more: Any) -> Plan:
    zero = {"stage": stage, "zero_hpz_partition_size": size, **more}
    flags = {
        "training.deepspeed": {"zero_optimization": zero, "bf16": {"enabled": True}},
        "data.train": "x",
        "model.name_or_path": "llama-2-7b",
    }
    config = load_config(None, flags=flags).config
    hardware = cluster_of("32xA100").hardware()
    shape = known_shape("llama-2-7b")
    return make_plan(
        Job(config, hardware, world_size=32, num_nodes=4, launcher="torchrun", run_dir="x", shape=shape)
    )


def parameters(plan: Plan) -> int:
    assert plan.memory is not None
    return int(plan.memory.largest.parameters)


@pytest.mark.parametrize("size", [2, 8, 32, 64])
def test_the_second_copy_is_counted(size: int) -> None:
    shape = known_shape("llama-2-7b")
    assert shape is not None
    more = parameters(plan_of(size)) - parameters(plan_of(1))
    assert more == pytest.approx(shape.num_parameters * 2 / min(size, 32), rel=1e-5)


def test_it_is_named_and_has_no_part_below_stage_3() -> None:
    subject = "zero_optimization.zero_hpz_partition_size"
    said = {d.subject: d for d in plan_of(8).decisions}
    assert (said[subject].choice, said[subject].granted) == ("8", True)
    below = {d.subject: d for d in plan_of(8, stage=2).decisions}
    assert not below[subject].granted
    assert parameters(plan_of(8, stage=2)) == parameters(plan_of(1, stage=2))


def test_a_size_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="zero.hpz"):
        plan_of(3)
