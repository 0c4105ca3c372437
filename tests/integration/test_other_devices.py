"""Whole runs on emulated devices of other names than CUDA's: Ascend's NPU, whose backend sums no float64, and
Apple's MPS, one process without float64 at all. The losses are the CPU's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from device_programs import MODEL, ROLLOUT, close, config_of, run, write_all_rows

pytestmark = [pytest.mark.integration]
_ON_POLICY = {"bf16": True, "rollout": ROLLOUT}
#: name -> (training, other sections)
PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sft": ({"bf16": True}, {}),
    "sft_fp16": ({"fp16": True}, {}),
    "sft_fp32": ({"mixed_precision": "no"}, {}),
    "sft_lora": ({"bf16": True}, {"lora": {"r": 4}}),
    "dpo": ({"bf16": True, "algorithm": "dpo"}, {}),
    "reward": ({"bf16": True, "algorithm": "reward"}, {}),
    "orpo": ({"bf16": True, "algorithm": "orpo"}, {}),
    "kto": ({"bf16": True, "algorithm": "kto", "per_device_train_batch_size": 4}, {}),
    "distillation": ({"bf16": True, "algorithm": "distillation", "distillation": {"beta": 0.1}}, {}),
    "grpo": ({**_ON_POLICY, "algorithm": "grpo"}, {}),
    "ppo": ({**_ON_POLICY, "algorithm": "ppo"}, {}),
    "rloo": ({**_ON_POLICY, "algorithm": "rloo"}, {}),
    "reinforce_plus_plus": ({**_ON_POLICY, "algorithm": "reinforce_plus_plus"}, {}),
}
QUICK = {("npu", "sft"), ("mps", "ppo")}  # pairs: tests/unit/device/test_device_parity.py
CELLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # DDP's reducer cannot be emulated
    "fsdp": ({"distributed_strategy": "fsdp"}, {}),
    "fsdp_dpo": ({"distributed_strategy": "fsdp", "algorithm": "dpo"}, {}),
    "tp": ({"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}}, {}),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("teacher")
    shutil.copytree(tokenizer_dir, folder, dirs_exist_ok=True)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all_rows(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize(
    ("where", "name"),
    [
        pytest.param(where, name, marks=() if (where, name) in QUICK else pytest.mark.slow)
        for where in ("npu", "mps", "xpu")
        for name in PROGRAMS
    ],
)
def test_a_program_trains_as_on_a_cpu(
    where: str, name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path, teacher: Path
) -> None:
    training, sections = PROGRAMS[name]
    if name == "distillation":
        training = {**training, "distillation": {**training["distillation"], "teacher_model": str(teacher)}}
    config = config_of(training, sections, rows, tokenizer_dir, tmp_path / "cache")
    cpu = run(tmp_path / "cpu", "cpu", config)
    device = run(tmp_path / "device", where, config)
    assert list(device) == list(cpu) == [1, 2, 3, 4]
    assert list(device.values()) == pytest.approx(list(cpu.values()), abs=close(training))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["npu", "xpu"])
@pytest.mark.parametrize("name", CELLS)
def test_two_processes_train_as_on_a_cpu(
    where: str, name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    training, sections = CELLS[name]
    config = config_of({"bf16": True, **training}, sections, rows, tokenizer_dir, tmp_path / "cache")
    cpu = run(tmp_path / "cpu", "cpu", config, world_size=2)
    device = run(tmp_path / "device", where, config, world_size=2)
    assert list(device) == list(cpu) == [1, 2, 3, 4]
    assert list(device.values()) == pytest.approx(list(cpu.values()), abs=close(training))
