"""``training.on_spike``: a step that no rank makes, and a way back to a checkpoint, end with the same numbers
under every strategy; so does a run that is killed between.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, instruction_rows
from test_killed_ranks import ranks_of
from test_train import end, events_of, start, train, wait_for_step

from paceline.core.rundir import RunDir
from paceline.runlog.events import Notice
from paceline.runlog.history import load_history

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]
ODD = 41  # the row, counted from 1, that is unlike all others
STEPS, SPIKE = 16, 10


@pytest.fixture
def odd(tiny: Tiny, tmp_path: Path) -> Tiny:
    """A config whose data have one odd row."""
    rows = instruction_rows(60)
    rows[ODD - 1]["output"] = "".join(chr(33 + (i * 37) % 90) for i in range(60))
    (tmp_path / "odd.json").write_text(json.dumps(rows))

    def make(**training: Any) -> dict[str, Any]:
        spikes = {"max_steps": STEPS, "spike_window": 8, "save_strategy": "steps", "save_steps": 4}
        config = tiny(**{"gradient_accumulation_steps": 2, "learning_rate": 1e-2, **spikes, **training})
        return {**config, "data": {**config["data"], "train": str(tmp_path / "odd.json"), "packing": False}}

    return make


def numbers(run: Path) -> list[tuple[int, float, float | None, str | None]]:
    steps = load_history(RunDir.at(run)).steps.values()
    return [(s.step, s.loss, s.grad_norm, s.skipped) for s in steps]


def spikes_of(run: Path) -> list[Any]:
    found = (e.diagnostic for e in events_of(run) if isinstance(e, Notice))
    return [diagnostic for diagnostic in found if diagnostic.code == "training.spike"]


def losses(run: Path) -> list[float]:
    return [loss for _, loss, _, _ in numbers(run)]


@pytest.fixture
def left_out(odd: Tiny, paceline: Paceline, tmp_path: Path) -> Path:
    """A run in one process that skips its spike."""
    config = odd(output_dir=str(tmp_path / "alone"), per_device_train_batch_size=2, on_spike="skip")
    done = train(paceline, config, tmp_path, 1)
    assert done.code == 0, done.err
    return tmp_path / "alone"


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [
        ("single", "rollback"),
        pytest.param("ddp", "skip", marks=pytest.mark.slow),
        ("zero2", "skip"),
        pytest.param("fsdp", "skip", marks=pytest.mark.slow),
        pytest.param("zero1", "skip", marks=pytest.mark.slow),
        pytest.param("zero3", "skip", marks=pytest.mark.slow),
        pytest.param("pipeline", "skip", marks=pytest.mark.slow),
        pytest.param("ddp", "rollback", marks=pytest.mark.slow),
        pytest.param("fsdp", "rollback", marks=pytest.mark.slow),
        pytest.param("zero2", "rollback", marks=pytest.mark.slow),
        pytest.param("zero3", "rollback", marks=pytest.mark.slow),
        pytest.param("pipeline", "rollback", marks=pytest.mark.slow),
    ],
)
def test_a_spike_is_left_out_alike(
    strategy: str, policy: str, left_out: Path, odd: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    ranks = 1 if strategy == "single" else 2
    copies = 1 if strategy in ("single", "pipeline") else 2
    config = odd(
        output_dir=str(tmp_path / "run"),
        distributed_strategy=strategy,
        per_device_train_batch_size=2 // copies,
        on_spike=policy,
    )
    if strategy == "pipeline":
        config["training"]["parallelism"] = {"pp_size": 2}
    done = train(paceline, config, tmp_path, ranks)
    assert done.code == 0, done.err
    spikes = [step for step, _, _, how in numbers(left_out) if how == "spike"]
    assert SPIKE in spikes
    assert [step for step, _, _, how in numbers(tmp_path / "run") if how == "spike"] == spikes
    named = {said.where: said.evidence["rows"] for said in spikes_of(tmp_path / "run")}
    assert named == {said.where: said.evidence["rows"] for said in spikes_of(left_out)}
    assert [*named] == [f"step {step}" for step in spikes]
    for rows in named.values():
        assert len(rows) == 4 and all(row.startswith(f"{tmp_path / 'odd.json'}:") for row in rows)
    assert losses(tmp_path / "run") == pytest.approx(losses(left_out), abs=3e-6)
    if ranks == 1:
        assert numbers(tmp_path / "run") == numbers(left_out), "the way back has the same bits"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["spikes"], result["skipped_spikes"], result["step"]) == (len(spikes), len(spikes), STEPS)


def test_a_resume_knows_the_steps_before(
    left_out: Path, odd: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    """Its window is in the checkpoint: the same steps are left out, with the same bits."""
    saved = left_out / f"checkpoints/step-{SPIKE - 2:08d}"
    again = odd(
        output_dir=str(tmp_path / "again"),
        per_device_train_batch_size=2,
        on_spike="skip",
        resume_from_checkpoint=str(saved),
    )
    done = train(paceline, again, tmp_path, 1)
    assert done.code == 0, done.err
    assert numbers(tmp_path / "again") == numbers(left_out)[SPIKE - 2 :]


@pytest.mark.slow
def test_a_kill_after_the_way_back_changes_nothing(
    left_out: Path, odd: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    config = odd(output_dir=str(tmp_path / "run"), on_spike="rollback", per_device_train_batch_size=1)
    whole = odd(output_dir=str(tmp_path / "whole"), on_spike="rollback", per_device_train_batch_size=1)
    process = start({**config, "launch": {"max_restarts": 2}}, tmp_path, 2)
    wait_for_step(tmp_path / "run", SPIKE + 1, process)
    os.kill(ranks_of(process, 2)[1], signal.SIGKILL)
    done = end(process)
    assert done.code == 0, done.err
    assert train(paceline, whole, tmp_path, 2).code == 0
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert losses(tmp_path / "run") == pytest.approx(losses(left_out), abs=3e-6)
