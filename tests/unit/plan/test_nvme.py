"""What of an NVMe offload reaches the drive: nothing under 1 MiB does, and the plan says how much that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.plan import Decision
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

CPU = replace(probe_hardware({}, use_cpu=True), packages=None)


def decisions(hidden: int, ranks: int, **zero: Any) -> dict[str, Decision]:
    drive = {"device": "nvme", "nvme_path": "/nvme"}
    block = {"stage": 3, "offload_param": drive, "offload_optimizer": drive, **zero}
    config = Config.model_validate(
        {
            "model": {
                "config": {
                    "model_type": "llama",
                    "hidden_size": hidden,
                    "intermediate_size": 2 * hidden,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 4,
                    "vocab_size": 64,
                    "max_position_embeddings": 64,
                },
                "tokenizer": "none",
            },
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": {"mixed_precision": "no", "deepspeed": {"zero_optimization": block}},
        }
    )
    plan = make_plan(Job(config, CPU, world_size=ranks, launcher="spawn", run_dir="none"))
    return {d.subject: d for d in plan.decisions if d.subject.startswith("zero_optimization.")}


def test_a_tiny_model_never_reaches_the_drive_and_that_is_said() -> None:
    found = decisions(32, 2)
    for part in ("offload_param", "offload_optimizer"):
        said = found[f"zero_optimization.{part}"]
        assert not said.granted and said.choice == "in memory" and "1.00 MiB" in said.reason


@pytest.mark.parametrize(
    ("hidden", "ranks", "there"), [(1024, 2, True), (1024, 8, False), (512, 2, False), (1024, 4, True)]
)
def test_a_part_of_a_mebibyte_is_where_it_begins(hidden: int, ranks: int, there: bool) -> None:
    """fp32 and one weight of hidden × hidden × 4 bytes over the ranks: 4 MiB / 4 goes, / 8 stays (that of
    2 × as many numbers goes).
    """
    said = decisions(hidden, ranks)["zero_optimization.offload_param"]
    square = 4 * hidden * hidden // ranks >= 2**20
    wide = 8 * hidden * hidden // ranks >= 2**20
    assert square is there and said.granted is wide
    if wide:
        assert "are moved there" in said.reason  # norms never do


def test_states_go_by_sub_groups() -> None:
    assert decisions(1024, 2)["zero_optimization.offload_optimizer"].granted
    small = decisions(1024, 2, sub_group_size=1000)["zero_optimization.offload_optimizer"]
    assert not small.granted and "sub-group" in small.reason
