"""Training with images is the same under every strategy: ranks with no image, one and seven in a step."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from vision_models import write_vision_folder

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("vision_worker.py")
TOWER = {"unfreeze": ["^"], "ratios": True}
TEXT: dict[str, Any] = {"r": 2, "alpha": 4.0, "target_modules": ["q_proj", "v_proj"]}
BOTH = {**TEXT, "target_modules": [r".*\.(q_proj|qkv)"]}
LEARNT: dict[str, dict[str, Any]] = {
    "plain": {},
    "tower": TOWER,
    "text": {"adapter": TEXT},
    "both": {"adapter": BOTH},
    "bf16": {"compute": "bfloat16"},
    "reward": {"algorithm": "reward"},
    "classes": {"algorithm": "classification", **TOWER},
}
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "mesh": {"dp_replicate": 2}},
    "fsdp": {"strategy": "fsdp", "mesh": {"dp_shard": 2}, "engine": {"meta_start": True}, "recompute": True},
    "tp": {"strategy": "fsdp", "mesh": {"tp": 2}},
}
if find_spec("deepspeed") is not None:
    WAYS |= {name: {"strategy": name, "mesh": {"dp_shard": 2}} for name in ("zero1", "zero2", "zero3")}
#: Each way but zero1 and each family stands in one of them or more; so do the kinds of what is learnt.
FAST = (
    *("qwen2_5_vl zero2 tower", "qwen2_5_vl zero3 both", "gemma3 tp plain"),
    *("llava fsdp classes", "gemma3 ddp bf16"),
)
KINDS = ("qwen2_5_vl", "gemma3", "llava")
FULL = tuple(f"{k} {way} {what}" for k in KINDS for way in WAYS for what in LEARNT)


@pytest.mark.parametrize("tier", ["fast", pytest.param("full", marks=pytest.mark.full)])
def test_losses_are_those_of_one_process(tmp_path: Path, tier: str) -> None:
    names = [name for name in FULL if (name in FAST) is (tier == "fast")]
    folders = {k: str(write_vision_folder(tmp_path / k, k)) for k in {name.split()[0] for name in names}}
    two: dict[str, dict[str, Any]] = {}
    one: dict[str, dict[str, Any]] = {}
    for name in names:
        kind, way, what = name.split()
        cell = {"folder": folders[kind], "kind": kind, **LEARNT[what]}
        two[name], one[f"{kind} {what}"] = {**cell, **WAYS[way]}, {**cell, "strategy": "single"}
    expected = _cells(one, 1, tmp_path / "one")[0]
    for found in _cells(two, 2, tmp_path / "two"):
        for name, steps in found.items():
            kind, _, what = name.split()
            near = 2e-2 if what == "bf16" else 5e-6
            for step, alone in zip(steps, expected[f"{kind} {what}"], strict=True):
                assert step == pytest.approx(alone, rel=near), name


def _cells(wanted: dict[str, Any], ranks: int, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    (folder / "wanted.json").write_text(json.dumps(wanted))
    codes, printed = run_ranks(str(folder / "wanted.json"), ranks, folder, script=WORKER)
    assert codes == [0] * ranks, "\n".join(printed)[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
