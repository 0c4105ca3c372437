"""``paceline rehearse``: the whole life of a run on two ranks, sound and with planted faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from support import Run, worker_environment, write_yaml
from test_train import wait_for_step

from paceline.launch import processes

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]

FAULTS = """
import time
import torch
from paceline.extend import SFT

kept = []


class Grows:
    def on_step_end(self, event):
        kept.append(torch.ones(8_000_000))


class Breaks:
    def on_step_end(self, event):
        if event.step == 2:
            raise ValueError("broken on purpose")


class Planted(SFT):
    steps, pause = 0, 0

    def losses(self, role, outputs, batch):
        if torch.is_grad_enabled():
            self.steps += 1
            time.sleep(self.pause)
        return {name: self.changed(loss) for name, loss in super().losses(role, outputs, batch).items()}

    def changed(self, loss):
        return loss


class Slower(Planted):
    pause = property(lambda self: 0.3 * self.steps)


class Stands(Planted):
    pause = property(lambda self: 10_000 if self.steps == 4 else 0)


class Counts(Planted):
    def changed(self, loss):
        return loss * (1 + 0.01 * self.steps)


class Overflows(Planted):
    def changed(self, loss):
        return loss * float("inf") if self.steps == 4 else loss


class FailsToEvaluate(Planted):
    def changed(self, loss):
        if not torch.is_grad_enabled():
            raise RuntimeError("broken on purpose")
        return loss


def broken(*arguments, **options):
    raise RuntimeError("broken on purpose")
"""
SPECS = """
from paceline.extend import AlgorithmSpec


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    how = {"rows": "documents", "outputs": ("nll", "correct"), "evaluated": ("eval_loss",)}
    return AlgorithmSpec(**how, options={}, implementation=f"planted:{name}")
"""


def rehearse(
    tiny: Tiny, paceline: Paceline, folder: Path, *words: str, **training: Any
) -> tuple[int, dict[str, Any]]:
    config = tiny(**{"max_steps": 2_000, "num_train_epochs": 1_000, "eval_strategy": "epoch", **training})
    config["data"]["validation_split"] = 0.2
    (folder / "planted.py").write_text(FAULTS)
    (folder / "planted_specs.py").write_text(SPECS)
    yaml = write_yaml(folder / "run.yaml", config)
    environment = {"PYTHONPATH": str(folder)}
    done = paceline("rehearse", str(yaml), "--nproc", "2", "--json", *words, env=environment, deadline=600)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def test_a_sound_run_lives_through_all_stages_and_leaves_nothing(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    code, said = rehearse(tiny, paceline, tmp_path, "--steps", "4", save_strategy="steps", save_steps=500)
    lines = {line["stage"]: line for line in said["lines"]}
    assert {name: line["verdict"] for name, line in lines.items()} == dict.fromkeys(
        (
            *("start", "steps", "memory", "data", "evaluation", "save"),
            *("kill", "resume", "stop", "another world size", "export"),
        ),
        "ok",
    ), said
    assert code == 0 and not said["failed"]
    assert "rank 1 was ended by SIGKILL" in lines["kill"]["text"]
    assert (
        lines["resume"]["text"].endswith("equal bit for bit") and lines["resume"]["numbers"]["compared_steps"]
    )
    assert lines["another world size"]["numbers"]["compared_steps"]
    assert lines["save"]["numbers"]["number"] == 4, "of the run's own 2,000 steps and interval"
    assert not (tmp_path / "run").exists() and not (tmp_path / "run-rehearsal").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "verdict", "code", "training"),
    [
        ("steps", "failed", "rehearse.step_grows", {"algorithm": "planted_specs:Slower"}),
        ("steps", "failed", "rehearse.stage", {"algorithm": "planted_specs:Stands"}),
        ("steps", "failed", "rehearse.loss", {"algorithm": "planted_specs:Overflows"}),
        ("resume", "failed", "rehearse.parted", {"algorithm": "planted_specs:Counts"}),
        ("evaluation", "failed", "rehearse.stage", {"algorithm": "planted_specs:FailsToEvaluate"}),
        ("memory", "failed", "rehearse.memory_grows", {"callbacks": ["planted:Grows"]}),
        ("warnings", "warning", "rehearse.warnings", {"callbacks": ["planted:Breaks"]}),
        (
            "warnings",
            "warning",
            "rehearse.warnings",
            {"eval_generate": True, "eval_metrics": ["planted:broken"]},
        ),
        ("export", "failed", "rehearse.export", {"exporters": ["planted:broken"]}),
    ],
)
def test_a_planted_fault_is_named_in_its_stage(
    stage: str,
    verdict: str,
    code: str,
    training: dict[str, Any],
    tiny: Tiny,
    paceline: Paceline,
    tmp_path: Path,
) -> None:
    _, said = rehearse(tiny, paceline, tmp_path, "--limit", "90", **training)
    [line] = [line for line in said["lines"] if line["stage"] == stage]
    assert (line["verdict"], line["finding"] and line["finding"]["code"]) == (verdict, code), said


def test_a_run_of_few_steps_is_no_fault(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    """Neither are the stages missed that need steps after a checkpoint, nor is their lack a failure."""
    code, said = rehearse(tiny, paceline, tmp_path, max_steps=1)
    verdicts = {line["stage"]: line["verdict"] for line in said["lines"]}
    assert code == 0 and not said["failed"], said
    assert (verdicts["save"], verdicts["resume"], verdicts["export"]) == ("ok", "not tried", "ok")
    assert "another world size" not in verdicts


@pytest.mark.slow
def test_a_run_of_three_steps_is_resumed(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    code, said = rehearse(tiny, paceline, tmp_path, max_steps=3)
    lines = {line["stage"]: line for line in said["lines"]}
    assert code == 0 and lines["resume"]["numbers"]["compared_steps"], said


def test_a_killed_rehearsal_leaves_no_training_behind(tiny: Tiny, tmp_path: Path) -> None:
    """Its run is as long as the real one, and nobody would end it."""
    yaml = write_yaml(tmp_path / "run.yaml", tiny(max_steps=100_000, num_train_epochs=100_000))
    words = ["rehearse", str(yaml), "--nproc", "1", "--steps", "50000"]
    rehearsal = warm.Popen(
        [sys.executable, "-m", "paceline.cli.main", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=worker_environment({"REHEARSED_IN": str(tmp_path)}),
        cwd=tmp_path,
        start_new_session=True,
    )
    wait_for_step(tmp_path / "run-rehearsal/run", 1, rehearsal)
    rehearsal.kill()
    rehearsal.wait()

    def left() -> list[int]:
        return [p for p, variables in processes.environments() if f"REHEARSED_IN={tmp_path}" in variables]

    deadline = time.monotonic() + 30
    while left() and time.monotonic() < deadline:
        time.sleep(0.2)
    still = left()
    for pid in still:
        processes.send(pid, signal.SIGKILL)
    assert not still


@pytest.mark.parametrize("kept", ["run/", "checkpoints/step-00000004/", "notes.txt"])
def test_a_folder_that_is_there_is_kept(kept: str, tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    """Whatever it holds: another rehearsal, another run, or something of the user's."""
    there = tmp_path / "run-rehearsal" / kept
    there.mkdir(parents=True)
    yaml = write_yaml(tmp_path / "run.yaml", tiny())
    done = paceline("rehearse", str(yaml), "--nproc", "1")
    assert done.code == 2 and "error[rehearse.folder]" in done.err and there.exists()
    assert str(tmp_path / "run-rehearsal") in done.err
