"""Reward models and DPO: the same on one process and on two, and through the whole program to a folder
that Transformers loads.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.integration]
pytest.importorskip("peft")
WORKER = Path(__file__).with_name("preference_worker.py")
LORA = {
    "r": 4,
    "alpha": 8,
    "dropout": 0.0,
    "target_modules": ["all-linear"],
    "modules_to_save": [],
    "bias": "none",
    "use_rslora": False,
    "start": None,
    "quantization": None,
}
LEARNED: dict[str, dict[str, Any]] = {
    "reward": {"algorithm": "reward", "options": {"center_rewards_coefficient": 0.05}},
    "reward LoRA": {"algorithm": "reward", "adapter": LORA},
    "dpo": {"algorithm": "dpo", "options": {"beta": 0.5, "rpo_alpha": 0.1}},
    "dpo LoRA": {
        "algorithm": "dpo",
        "options": {"loss_type": "ipo", "reference": "adapter"},
        "adapter": LORA,
    },
}
ENGINES: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single", "mesh": {}},
    "ddp": {"strategy": "ddp", "mesh": {"dp_replicate": 2}},
    "fsdp": {"strategy": "fsdp", "engine": {"sharding": "full_shard"}},
    "tp": {"strategy": "fsdp", "mesh": {"tp": 2}},
}


def cells(wanted: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    (folder / "wanted.json").write_text(json.dumps(wanted))
    codes, said = run_ranks(str(folder / "wanted.json"), 2, folder, script=WORKER)
    assert codes == [0, 0], "\n".join(said)[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def close(found: dict[str, Any], right: dict[str, Any], bound: float) -> None:
    """Losses, statistics and the evaluation to ``bound``, norms and parameters to ten times that."""
    # the second four steps see the pairs of the first four
    losses = [step["loss"] for step in found["steps"]]
    assert len(losses) == 8 and sum(losses[4:]) < sum(losses[:4]) - 0.2
    assert any(step["norm"] > 0.5 for step in found["steps"]), "clipping was never active"
    assert [step["pairs"] for step in found["steps"]] == [8, 8, 7, 8, 8, 7, 8, 8]
    for one, other in zip(found["steps"], right["steps"], strict=True):
        assert one.keys() == other.keys() and len(one) >= 9
        for name, value in other.items():
            slack = 1 if "logps" not in name and "norm" not in name else 50
            assert one[name] == pytest.approx(value, abs=slack * bound, rel=slack * bound), name
    assert found["eval"].keys() == right["eval"].keys()
    for name, value in right["eval"].items():
        assert found["eval"][name] == pytest.approx(value, abs=50 * bound, rel=10 * bound), name
    assert found["parameters"].keys() == right["parameters"].keys()
    for name, values in right["parameters"].items():
        assert found["parameters"][name] == pytest.approx(values, abs=10 * bound), name


FAST = {"reward": ("single", "ddp"), "dpo": ("single", "tp"), "dpo LoRA": ("single", "fsdp")}


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.full)], ids=["some", "all"])
def test_two_processes_learn_what_one_learns_in_float64(some: bool, tmp_path: Path) -> None:
    wanted = {
        f"{learnt} · {engine}": {**what, **how, "dtype": "float64"}
        for learnt, what in LEARNED.items()
        for engine, how in ENGINES.items()
        if (engine in FAST.get(learnt, ()) if some else engine != "tp" or learnt == "dpo")
    }
    for found in cells(wanted, tmp_path / "two"):
        for name, cell in found.items():
            close(cell, found[f"{name.split(' · ')[0]} · single"], 1e-10)
        assert found["dpo · tp"]["steps"][0]["rewards/margins"] == pytest.approx(0.0, abs=1e-12)
        assert found["dpo LoRA · fsdp"]["steps"][-1]["rewards/margins"] > 0.01


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed")
def test_zero_3_learns_what_one_process_learns(tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    zero = {"strategy": "zero3", "engine": {"zero_stage": 3, "config": config}}
    wanted = {
        f"{learnt} · {engine}": {**what, **how}
        for learnt, what in LEARNED.items()
        if learnt != "reward LoRA"
        for engine, how in (("single", ENGINES["single"]), ("zero3", zero))
    }
    for found in cells(wanted, tmp_path / "two"):
        for name in wanted:
            close(found[name], found[f"{name.split(' · ')[0]} · single"], 2e-6)
