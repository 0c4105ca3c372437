"""The loop and a save beside it: at most one, heard of at the next step, waited for at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from paceline.checkpoint import codes
from paceline.checkpoint.checkpointer import AsyncSaveResult, SaveCost
from paceline.core.errors import CheckpointError
from paceline.runlog import events
from paceline.training.checkpointing.saver import RunCheckpointer
from paceline.training.loop.intervals import Cadence
from paceline.training.loop.time_bands import BandClock
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.trainer import Hooks, Trainer

FULL = codes.CHECKPOINT_DISK_FULL("the disk is full", "there")


class Beside:
    """Saves that end when the test says so."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.is_working = False
        self.outcomes: list[Exception | None] = []
        self.seen: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.step is not None

    def start(self, step: int, *_: object) -> None:
        assert self.step is None, "two saves at once"
        self.step, self.is_working = step, True
        self.seen.append(f"start {step}")

    def end(self, timeout: float | None = None) -> AsyncSaveResult | None:
        assert self.step is not None
        step, self.step, self.is_working = self.step, None, False
        self.seen.append(f"end {step}")
        error = self.outcomes.pop(0) if self.outcomes else None
        if error is not None:
            raise error
        return AsyncSaveResult(step, mock.sentinel.path, SaveCost(2.0, 100), 0.25)

    def take_notes(self) -> list[Any]:
        return []


@pytest.fixture
def beside() -> Beside:
    return Beside()


@pytest.fixture
def heard() -> list[events.Event]:
    return []


@pytest.fixture
def trainer(beside: Beside, heard: list[events.Event], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setattr("paceline.training.checkpointing.saver.LateFlag", lambda world, before: bool)
    contents: Any = SimpleNamespace(parts=mock.Mock(), state=dict, shards=lambda step: [], files={})
    saves = RunCheckpointer(
        contents,
        mock.Mock(),
        lambda event, notes: heard.append(event),
        keep_best=False,
        beside=beside,  # type: ignore[arg-type]
    )
    cadence = Cadence(10, 1, False, "no", 1, "steps", 4)
    made = object.__new__(Trainer)
    made.__dict__.update(
        saves=saves,
        cadence=cadence,
        state=TrainState(),
        epochs=SimpleNamespace(is_epoch_end=lambda step: False),
        agree=bool,
        evaluate=None,
        any_rank=bool,
        hooks=Hooks(heard.append),
        failed_saves=0,
        bands=BandClock(),
    )
    return made


def go(trainer: Trainer, *steps: int) -> str | None:
    outcome = None
    for step in steps:
        trainer.state.step = step
        outcome = trainer._between_steps()
    return outcome


def saved(heard: list[events.Event]) -> list[int]:
    return [e.step for e in heard if isinstance(e, events.CheckpointSaved)]


def test_training_goes_on_until_every_rank_has_ended(
    trainer: Trainer, beside: Beside, heard: list[events.Event]
) -> None:
    go(trainer, 3, 4, 5, 6)
    assert beside.seen == ["start 4"] and saved(heard) == []
    beside.is_working = False
    go(trainer, 7)
    assert saved(heard) == [4]
    event = next(e for e in heard if isinstance(e, events.CheckpointSaved))
    assert (event.seconds, event.waited, event.bytes) == (2.0, 0.25, 100)


def test_the_next_save_and_the_last_one_wait(
    trainer: Trainer, beside: Beside, heard: list[events.Event]
) -> None:
    go(trainer, 4, 5, 6, 7, 8)
    assert beside.seen == ["start 4", "end 4", "start 8"]
    go(trainer, 9, 10)
    assert beside.seen[3:] == ["end 8", "start 10", "end 10"] and saved(heard) == [4, 8, 10]


def test_a_stop_ends_what_is_under_way_and_saves_its_own_step(
    trainer: Trainer, beside: Beside, heard: list[events.Event]
) -> None:
    go(trainer, 4)
    trainer.hooks.stop_requested = lambda: True
    assert go(trainer, 5) == "stopped" and saved(heard) == [4, 5] and not beside.is_running


def test_a_failure_is_said_at_the_next_step_and_the_second_in_a_row_ends_the_run(
    trainer: Trainer, beside: Beside, heard: list[events.Event]
) -> None:
    beside.outcomes = [CheckpointError(FULL), CheckpointError(FULL)]
    go(trainer, 4)
    beside.is_working = False
    go(trainer, 5)
    (notice,) = [e for e in heard if isinstance(e, events.Notice)]
    assert notice.diagnostic.code == "checkpoint.disk_full" and notice.diagnostic.severity == "warning"
    go(trainer, 6, 7, 8)
    beside.is_working = False
    with pytest.raises(CheckpointError, match="disk_full"):
        go(trainer, 9)


def test_one_that_succeeds_forgives_one_that_failed(trainer: Trainer, beside: Beside) -> None:
    beside.outcomes = [CheckpointError(FULL), None, CheckpointError(FULL)]
    for step in range(1, 10):
        beside.is_working = False
        go(trainer, step)
    assert trainer.failed_saves == 0, "the second one succeeded"


def test_the_last_save_must_succeed(trainer: Trainer, beside: Beside) -> None:
    go(trainer, 4)
    beside.is_working = False
    go(trainer, 5)
    beside.outcomes = [None, CheckpointError(FULL)]
    go(trainer, 8, 9)
    with pytest.raises(CheckpointError, match="disk_full"):
        go(trainer, 10)


def test_an_error_of_the_run_lets_the_save_end(
    trainer: Trainer, beside: Beside, heard: list[events.Event]
) -> None:
    go(trainer, 4)
    assert trainer.saves is not None
    trainer.saves.rescue()
    assert saved(heard) == [4]
    go(trainer, 8)
    beside.outcomes = [CheckpointError(FULL)]
    trainer.saves.rescue()
    assert saved(heard) == [4], "the run's own error is the one to name"
