"""Checkpoints that other programs wrote go on here: the next losses are those with which they went on."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from foreign_training import (
    DECAY,
    RATE,
    SAVED,
    STEPS,
    TEXTS,
    WARMUP,
    build,
    collate,
    groups,
    ours,
    plain_loop,
    token_rows,
    write_texts,
)
from ranks import free_port, rank_environment
from safetensors.torch import load_file
from support import Run, write_yaml
from torch.distributed.checkpoint.state_dict import get_state_dict
from transformers import AutoTokenizer, LlamaForCausalLM

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
Paceline = Callable[..., Run]


def continued(
    paceline: Paceline,
    folder: Path,
    source: Path,
    model: Path,
    *more: str,
    processes: int = 1,
    lora: dict[str, Any] | None = None,
    **training: Any,
) -> list[float]:
    """Convert ``source`` and train on; return the losses of the steps after it."""
    done = paceline("checkpoints", "convert", str(source), "--to", str(folder / "converted"), *more)
    assert done.code == 0, done.err[-2000:]
    made = ours(folder, write_texts(folder), model, **training)
    config = write_yaml(folder / "ours.yaml", made | ({} if lora is None else {"lora": lora}))
    command = ("train", str(config), "--resume", str(folder / "converted"), "--nproc", str(processes))
    done = paceline(*command)
    assert done.code == 0, done.err[-3000:]
    assert "resume.converted" in done.out + done.err
    found = read_events(RunDir.at(folder / "run").events(0))
    steps = [r.event for r in found if isinstance(r.event, Step)]
    assert [s.step for s in steps] == list(range(SAVED + 1, STEPS + 1))
    return [s.loss for s in steps]


def near(found: list[float], expected: list[float]) -> bool:
    assert len(found) == len(expected) == STEPS - SAVED
    assert max(expected) - min(expected) > 0.01, "losses that move"
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 2e-6


def trained_by_transformers(
    folder: Path, tokenizer: Path, model: Any = None, learning_rate: float = RATE
) -> list[float]:
    """Train with Transformers' Trainer, saving after three steps; return the losses after that."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=len(TEXTS),
        learning_rate=learning_rate,
        weight_decay=DECAY,
        warmup_steps=WARMUP,
        logging_steps=1,
        save_steps=SAVED,
        report_to=[],
        use_cpu=True,
        optim="adamw_torch",
        disable_tqdm=True,
    )
    trainer = Trainer(
        build() if model is None else model,
        arguments,
        train_dataset=token_rows(tokenizer),
        data_collator=collate,
        processing_class=AutoTokenizer.from_pretrained(str(tokenizer)),
    )
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return losses[SAVED:]


def test_a_checkpoint_of_transformers_goes_on(
    tmp_path: Path, tokenizer_dir: Path, paceline: Paceline
) -> None:
    expected = trained_by_transformers(tmp_path / "hf", tokenizer_dir)
    source = tmp_path / f"hf/checkpoint-{SAVED}"
    assert near(continued(paceline, tmp_path, source, source), expected)


def test_a_folder_of_torch_dcp_goes_on(tmp_path: Path, tokenizer_dir: Path, paceline: Paceline) -> None:
    """A user's own loop that saves with torch.distributed.checkpoint; here two processes go on, by fsdp."""
    model = build()
    optimizer = torch.optim.AdamW(groups(model), lr=RATE)

    def save() -> None:
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        losses = list(plain_loop(model, optimizer, token_rows(tokenizer_dir), save))
    model.config.save_pretrained(tmp_path / "dcp")
    (tmp_path / "base").mkdir()
    model.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(tmp_path / "base")
    found = continued(
        paceline,
        tmp_path,
        tmp_path / "dcp",
        tmp_path / "base",
        processes=2,
        distributed_strategy="fsdp",
        per_device_train_batch_size=len(TEXTS) // 2,
    )
    assert near(found, losses[SAVED:])


def trained_on_two(program: str, folder: Path, tokenizer: Path, *more: str) -> list[float]:
    """Train with another program on two processes; return the losses after the save."""
    port, script = free_port(), Path(__file__).with_name(program)
    argv = [sys.executable, str(script), str(folder), str(tokenizer), *more]
    ranks = []
    for rank in (0, 1):
        with (folder / f"{rank}.log").open("w") as log:
            environment = rank_environment(rank, 2, port)
            ranks.append(subprocess.Popen(argv, env=environment, stdout=log, stderr=subprocess.STDOUT))
    codes = [rank.wait(400) for rank in ranks]
    assert codes == [0, 0], (folder / "0.log").read_text()[-3000:]
    AutoTokenizer.from_pretrained(str(tokenizer)).save_pretrained(folder / "saved")
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed")
@pytest.mark.parametrize(("stage", "universal"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
def test_a_checkpoint_of_deepspeed_goes_on(
    tmp_path: Path, tokenizer_dir: Path, paceline: Paceline, stage: int, universal: bool
) -> None:
    expected = trained_on_two("foreign_deepspeed.py", tmp_path, tokenizer_dir, str(stage))
    saved = tmp_path / "saved"
    (tmp_path / "base").mkdir()
    build().save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(tmp_path / "base")
    source = saved
    if universal:
        source = saved / f"global_step{SAVED}_universal"
        more = ["--inject_missing_state"] if stage < 3 else []
        program = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *more]
        folders = ["--input_folder", str(saved / f"global_step{SAVED}"), "--output_folder", str(source)]
        done = subprocess.run([*program, *folders], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert near(continued(paceline, tmp_path, source, tmp_path / "base"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("init", [True, "pissa", "olora"])
def test_an_adapter_of_peft_goes_on(
    tmp_path: Path, tokenizer_dir: Path, paceline: Paceline, init: bool | str
) -> None:
    from peft import LoraConfig, get_peft_model

    base = tmp_path / "base"
    build().save_pretrained(base)
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(base)
    settings: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    model = get_peft_model(
        LlamaForCausalLM.from_pretrained(base),
        LoraConfig(
            **settings, lora_alpha=16, lora_dropout=0.0, init_lora_weights=init, task_type="CAUSAL_LM"
        ),  # type: ignore[arg-type]
    )
    rate = 0.1 if init is True else 0.01
    expected = trained_by_transformers(tmp_path / "hf", tokenizer_dir, model=model, learning_rate=rate)
    lora = {**settings, "alpha": 16, "dropout": 0.0, "init_lora_weights": init}
    source = tmp_path / f"hf/checkpoint-{SAVED}"
    assert near(continued(paceline, tmp_path, source, base, lora=lora, learning_rate=rate), expected)


@pytest.mark.slow
@pytest.mark.fresh
def test_what_accelerate_saved_under_fsdp_goes_on(
    tmp_path: Path, tokenizer_dir: Path, paceline: Paceline
) -> None:
    expected = trained_on_two("foreign_accelerate.py", tmp_path, tokenizer_dir)
    (tmp_path / "base").mkdir()
    build().save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(tmp_path / "base")
    source = tmp_path / "saved/pytorch_model_fsdp_0"
    assert near(continued(paceline, tmp_path, source, tmp_path / "base"), expected)


def trained_by_trl(kind: str, folder: Path, base: Path, tokenizer: Path) -> list[float]:
    """Train with one of TRL's trainers in a process of its own; return the losses after the save."""
    script = Path(__file__).with_name("foreign_trl.py")
    argv = [sys.executable, str(script), kind, str(folder), str(base), str(tokenizer)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses


trl_is_there = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None,
    reason="needs TRL: pip install --target DIR --no-deps trl==1.16.0",
)


@pytest.mark.slow
@trl_is_there
@pytest.mark.parametrize("kind", ["sft", "lora"])
def test_a_checkpoint_of_trl_goes_on(
    tmp_path: Path, tokenizer_dir: Path, paceline: Paceline, kind: str
) -> None:
    base, source = tmp_path / "base", tmp_path / f"theirs/checkpoint-{SAVED}"
    build().save_pretrained(base)
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(base)
    expected = trained_by_trl(kind, tmp_path / "theirs", base, tokenizer_dir)
    if kind == "sft":
        assert near(continued(paceline, tmp_path, source, source), expected)
        return
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], "alpha": 16, "dropout": 0.0}
    assert near(continued(paceline, tmp_path, source, base, lora=lora, learning_rate=0.1), expected)


@pytest.mark.slow
@trl_is_there
@pytest.mark.parametrize("kind", ["reward", "dpo", "grpo"])
def test_what_trl_s_other_trainers_save_is_converted_with_its_moments(
    tmp_path: Path, tokenizer_dir: Path, kind: str
) -> None:
    base, source = tmp_path / "base", tmp_path / f"theirs/checkpoint-{SAVED}"
    build().save_pretrained(base)
    AutoTokenizer.from_pretrained(str(tokenizer_dir)).save_pretrained(base)
    trained_by_trl(kind, tmp_path / "theirs", base, tokenizer_dir)
    report = convert(source, tmp_path / "ours")
    weights = load_file(source / "model.safetensors")
    assert report.written.step == SAVED and report.written.num_moments == 3 * len(weights)
    role = "reward" if kind == "reward" else "policy"
    with CheckpointReader(report.written.path) as found:
        assert found.roles() == (role,)
        assert all(torch.equal(found.read(role, name, "param"), t) for name, t in weights.items())
