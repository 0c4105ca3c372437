"""Whole runs on an emulated accelerator: train, evaluate, save and resume in one process, and two processes
of every way to shard, with the losses of the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from device_programs import ROLLOUT, close, config_of, run, write_all_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]
#: name -> (training, other sections, capability)
PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "sft_bf16": ({"bf16": True}, {}, (9, 0)),
    "sft_fp32": ({"mixed_precision": "no"}, {}, (8, 0)),
    "sft_fp16_t4": ({"fp16": True}, {}, (7, 5)),
    "sft_lora": ({"bf16": True}, {"lora": {"r": 4}}, (9, 0)),
    "reward": ({"bf16": True, "algorithm": "reward"}, {}, (9, 0)),
    "dpo_live": ({"bf16": True, "algorithm": "dpo"}, {}, (9, 0)),
    "dpo_lora": ({"bf16": True, "algorithm": "dpo"}, {"lora": {"r": 4}}, (9, 0)),
    "grpo": ({"bf16": True, "algorithm": "grpo", "rollout": ROLLOUT}, {}, (9, 0)),
    "ppo": ({"bf16": True, "algorithm": "ppo", "rollout": ROLLOUT}, {}, (9, 0)),
}
FSDP = {"distributed_strategy": "fsdp"}
CELLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fsdp": (FSDP, {}),
    "fsdp_offload": ({**FSDP, "fsdp": "full_shard offload"}, {}),
    "fsdp_fp16": ({**FSDP, "bf16": False, "fp16": True}, {}),
    "fsdp_recompute": ({**FSDP, "gradient_checkpointing": True}, {}),
    "fsdp_lora": (FSDP, {"lora": {"r": 4}}),
    "fsdp_dpo": ({**FSDP, "algorithm": "dpo"}, {}),
    "hsdp": ({**FSDP, "parallelism": {"dp_replicate_size": 2}}, {}),
    "tp": ({**FSDP, "parallelism": {"tp_size": 2}}, {}),
    "tp_sp": ({**FSDP, "parallelism": {"tp_size": 2, "sequence_parallel": True}}, {}),
    "cp": ({**FSDP, "parallelism": {"cp_size": 2}}, {}),
    "cp_allgather": ({**FSDP, "parallelism": {"cp_size": 2, "cp_method": "allgather"}}, {}),
    "pipeline": ({"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}}, {}),
    "zero1": ({"distributed_strategy": "zero1"}, {}),
    "zero2": ({"distributed_strategy": "zero2"}, {}),
    "zero3": ({"distributed_strategy": "zero3"}, {}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all_rows(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_as_on_a_cpu_and_resumes_exactly(
    name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    training, sections, capability = PROGRAMS[name]
    config = config_of(training, sections, rows, tokenizer_dir, tmp_path / "cache")
    cpu = run(tmp_path / "cpu", "cpu", config, capability)
    device = run(tmp_path / "device", "cuda", config, capability)
    assert list(device) == list(cpu) == [1, 2, 3, 4]
    assert list(device.values()) == pytest.approx(list(cpu.values()), abs=close(training))
    last = tmp_path / "device" / "run" / "checkpoints" / "step-00000004"
    last.rename(tmp_path / "aside")
    again = run(tmp_path / "device", "cuda", config, capability, resume=True)
    assert {step: again[step] for step in (3, 4)} == {step: device[step] for step in (3, 4)}


@pytest.mark.parametrize("name", CELLS)
def test_two_processes_train_as_on_a_cpu(
    name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    training, sections = CELLS[name]
    config = config_of({"bf16": True, **training}, sections, rows, tokenizer_dir, tmp_path / "cache")
    cpu = run(tmp_path / "cpu", "cpu", config, world_size=2)
    device = run(tmp_path / "device", "cuda", config, world_size=2)
    assert list(device) == list(cpu) == [1, 2, 3, 4]
    assert list(device.values()) == pytest.approx(list(cpu.values()), abs=close(training))


@pytest.mark.parametrize("name", ["fsdp", "fsdp_lora", "tp", "pipeline", "zero1", "zero2", "zero3"])
def test_two_processes_resume_on_the_device(
    name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    """On an H100 the first step after a resume under ZeRO met a counter that lay on the host."""
    training, sections = CELLS[name]
    config = config_of({"bf16": True, **training}, sections, rows, tokenizer_dir, tmp_path / "cache")
    device = run(tmp_path / "device", "cuda", config, world_size=2)
    (tmp_path / "device" / "run" / "checkpoints" / "step-00000004").rename(tmp_path / "aside")
    again = run(tmp_path / "device", "cuda", config, world_size=2, resume=True)
    assert {step: again[step] for step in (3, 4)} == pytest.approx({step: device[step] for step in (3, 4)})


@pytest.mark.parametrize("logging_steps", [1, 3])
@pytest.mark.parametrize("algorithm", ["sft", "reward", "dpo"])
def test_a_program_waits_for_no_window_whatever_it_logs(
    algorithm: str, logging_steps: int, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    """And for no micro-batch: six steps wait as often as three, and four micro-batches as often as two."""
    quiet = {"bf16": True, "algorithm": algorithm, "logging_steps": logging_steps}
    quiet |= {"eval_strategy": "no", "save_strategy": "no"}
    waits = {}
    for steps, accumulation in ((3, 2), (6, 2), (6, 4)):
        training = {**quiet, "max_steps": steps, "gradient_accumulation_steps": accumulation}
        folder = tmp_path / f"{steps}-{accumulation}"
        run(folder, "cuda", config_of(training, {}, rows, tokenizer_dir, tmp_path / "cache"))
        waits[steps, accumulation] = json.loads((folder / "seen.0.json").read_text())["waits"]
    total = {case: sum(seen.values()) for case, seen in waits.items()}
    assert total[6, 2] == total[3, 2], waits
    assert total[6, 4] == total[6, 2], waits


def _of_json(place: str) -> bool:
    what, _, where = place.rpartition(" ")
    return where.startswith("training/same_weights") or (
        where.startswith("runtime/process_group/world.py") and what != "tolist"
    )


@pytest.mark.parametrize("name", ["fsdp", "fsdp_fp16", "fsdp_dpo", "tp", "cp"])
def test_two_processes_wait_for_no_window(
    name: str, tmp_path: Path, rows: dict[str, Path], tokenizer_dir: Path
) -> None:
    """Its weight is not read before its first forward, nor are its results before the next one; the check of
    equal weights, made now and then, sends JSON and is counted apart.
    """
    training, sections = CELLS[name]
    quiet = {"bf16": True, "eval_strategy": "no", "save_strategy": "no", **training}
    waits = []
    for steps in (3, 5):
        config = config_of({**quiet, "max_steps": steps}, sections, rows, tokenizer_dir, tmp_path / "cache")
        run(tmp_path / str(steps), "cuda", config, world_size=2)
        seen = json.loads((tmp_path / str(steps) / "seen.0.json").read_text())
        waits.append(sum(n for place, n in seen["waits"].items() if not _of_json(place)))
    assert waits[1] == waits[0], seen["waits"]
