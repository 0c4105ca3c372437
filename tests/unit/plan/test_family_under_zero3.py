"""A family whose layers use other weights on each rank is refused under ZeRO-3, and under nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan


def planned(tmp_path: Path, kind: str, **training: object) -> None:
    path = tmp_path / "config.json"
    model = {"model": {"config": {"model_type": kind, "num_layers": 1}, "tokenizer": "o/t"}}
    path.write_text(
        json.dumps({**model, "data": {"train": "rows.jsonl", "max_length": 64}, "training": training})
    )
    hardware = cluster_of("2xH100").hardware()
    make_plan(Job(load_config(str(path)).config, hardware, world_size=2, launcher="spawn", run_dir=""))


@pytest.mark.parametrize(("kind", "strategy"), [("longcat_flash", "zero2"), ("mixtral", "zero3")])
def test_others_are_planned(kind: str, strategy: str, tmp_path: Path) -> None:
    try:
        planned(tmp_path, kind, distributed_strategy=strategy)
    except ConfigError as error:
        assert "plan.family_strategy" not in {d.code for d in error.diagnostics}


def test_it_is_refused_with_another_strategy_to_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, "longcat_flash", distributed_strategy="zero3")
    [found] = [d for d in caught.value.diagnostics if d.code == "plan.family_strategy"]
    assert found.hint == "distributed_strategy: fsdp" and found.found == "ZeRO-3"
