"""How many processes a node a config is planned with on hardware that is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.core.errors import ConfigError
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.hardware.device_catalogue import cluster_of

ROOT = Path(__file__).resolve().parents[3]
MODEL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def make(hardware: str, training: dict[str, Any], flags: dict[str, object] | None = None) -> Any:
        (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
        values = {
            "model": {"config": MODEL, "tokenizer": str(ROOT / "examples" / "tokenizer")},
            "data": {"train": str(tmp_path / "rows.jsonl")},
            "training": {"output_dir": str(tmp_path / "run"), "max_steps": 3, **training},
        }
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
        return planned(load(tmp_path / "c.yaml", [], flags), cluster=cluster_of(hardware))[0]

    return make


@pytest.mark.parametrize(
    ("hardware", "training", "flags", "world", "strategy"),
    [
        ("4xA100", {"distributed_strategy": "data_parallel"}, {}, 1, "data_parallel"),
        ("1xA100", {"distributed_strategy": "data_parallel"}, {}, 1, "data_parallel"),
        ("4xA100", {"distributed_strategy": "single"}, {}, 1, "single"),
        ("4xA100", {"distributed": False}, {}, 1, "single"),
        ("4xA100", {"distributed_strategy": "ddp"}, {}, 4, "ddp"),
        ("4xA100", {"distributed_strategy": "ddp"}, {"launch.nproc": 2}, 2, "ddp"),
        ("16xA100", {"distributed_strategy": "ddp"}, {}, 16, "ddp"),
        (
            "16xA100",
            {"distributed_strategy": "ddp"},
            {"launch.nnodes": 2, "launch.master_port": 29500},
            16,
            "ddp",
        ),
    ],
)
def test_processes_by_strategy(
    plan: Any, hardware: str, training: dict[str, Any], flags: dict[str, object], world: int, strategy: str
) -> None:
    found = plan(hardware, training, flags)
    assert (found.world_size, found.strategy) == (world, strategy)
    if strategy == "data_parallel":
        assert found.engine.devices == int(hardware.partition("x")[0])


def test_a_number_of_nodes_that_the_hardware_has_not(plan: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        plan("4xA100", {"distributed_strategy": "ddp"}, {"launch.nnodes": 2})
    assert [d.code for d in caught.value.diagnostics] == ["plan.hardware_nodes"]


def test_more_processes_than_cards(plan: Any) -> None:
    with pytest.raises(ConfigError, match="too_few_devices"):
        plan("4xA100", {"distributed_strategy": "ddp"}, {"launch.nproc": 8})
