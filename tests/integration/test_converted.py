"""Checkpoints that other programs wrote go on here: the next losses are those with which they went on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_training import (
    DECAY,
    RATE,
    SAVED,
    STEPS,
    TEXTS,
    WARMUP,
    build,
    collate,
    ours,
    token_rows,
    write_texts,
)
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.eventlog import read_events
from paceline.runlog.events import Step

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
Paceline = Callable[..., Run]


def continued(
    paceline: Paceline,
    folder: Path,
    source: Path,
    model: Path,
    *more: str,
    processes: int = 1,
    **training: Any,
) -> list[float]:
    """Convert ``source`` and train on; return the losses of the steps after it."""
    done = paceline("checkpoints", "convert", str(source), "--to", str(folder / "converted"), *more)
    assert done.code == 0, done.err[-2000:]
    config = write_yaml(folder / "ours.yaml", ours(folder, write_texts(folder), model, **training))
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


def trained_by_transformers(folder: Path, tokenizer: Path, **more: Any) -> list[float]:
    """Train with Transformers' Trainer, saving after three steps; return the losses after that."""
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=len(TEXTS),
        learning_rate=RATE,
        weight_decay=DECAY,
        warmup_steps=WARMUP,
        logging_steps=1,
        save_steps=SAVED,
        report_to=[],
        use_cpu=True,
        optim="adamw_torch",
        disable_tqdm=True,
        **more,
    )
    trainer = Trainer(
        build(),
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
