"""The record of a step whose numbers are on their way is written while the next step runs, and before what
needs it; nothing is lost, and errors name the step that they are of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from test_learning import result, trainer_of

from paceline.core.errors import PacelineError
from paceline.protocols.window import StepResult, UnreadResult
from paceline.runlog import events
from paceline.training.loop.trainer import Hooks, Trainer


class OnItsWay:
    """Starts windows whose results arrive one window later, or never: ``done`` has what happened in order."""

    def __init__(self, results: list[StepResult], fails_at: int = 0, arrives: bool = True) -> None:
        self.results, self.fails_at, self.there = results, fails_at, arrives
        self.done: list[str] = []
        self.started = 0

    def start_window(self, *_: Any, **__: Any) -> UnreadResult:
        self.started += 1
        step = self.started
        if step == self.fails_at:
            raise ValueError(f"step {step} fails")
        self.done.append(f"start {step}")

        def read() -> StepResult:
            self.done.append(f"read {step}")
            return self.results[step - 1]

        return UnreadResult(read, under_way=True, arrives=lambda seconds: self.there)


class Saved:
    def __init__(self, done: list[str]) -> None:
        self.done = done

    def save(self, step: int) -> bool:
        self.done.append(f"save {step}")
        return True

    def settle(self, *, wait: bool) -> bool:
        return False

    def rescue(self) -> None: ...


def late(runner: OnItsWay, steps: int, **fields: Any) -> Trainer:
    made = trainer_of(runner, steps, [])

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Step):
            runner.done.append(f"record {event.step}")

    return dataclasses.replace(made, late=True, hooks=Hooks(hear), **fields)


def losses(*values: float) -> list[StepResult]:
    return [result(value, 1.0) for value in values]


def test_a_step_is_recorded_while_the_next_one_runs_and_the_last_at_the_end() -> None:
    runner = OnItsWay(losses(3, 2, 1))
    trainer = late(runner, 3)
    assert trainer.train() == "completed"
    words = "start 1, start 2, read 1, record 1, start 3, read 2, record 2, read 3, record 3"
    assert ", ".join(runner.done) == words
    assert (trainer.state.step, trainer.state.trained_steps, trainer.state.first_loss) == (3, 3, 3.0)


def test_one_that_is_not_late_is_recorded_at_once() -> None:
    runner = OnItsWay(losses(3, 2))
    assert dataclasses.replace(late(runner, 2), late=False).train() == "completed"
    assert [word for word in runner.done if "start" in word or "record" in word] == [
        "start 1",
        "record 1",
        "start 2",
        "record 2",
    ]


def test_the_records_are_the_same_either_way() -> None:
    found = []
    for is_late in (True, False):
        heard: list[events.Event] = []
        trainer = late(OnItsWay(losses(3, 2, 1, 0.5)), 4, saves=Saved([]))
        dataclasses.replace(trainer, late=is_late, hooks=Hooks(heard.append)).train()
        timed = {"step_seconds": 0.0, "tokens_per_second": 0.0, "memory_bytes": 0, "data_seconds": 0.0}
        steps = [event for event in heard if isinstance(event, events.Step)]
        found.append([dataclasses.replace(event, **timed) for event in steps])
    assert found[0] == found[1] and [event.step for event in found[0]] == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["saves", "evaluates"])
def test_it_is_recorded_before_a_save_and_before_an_evaluation(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = OnItsWay(losses(3, 2, 1))
    saves = Saved(runner.done)

    def evaluated() -> dict[str, float]:
        runner.done.append(f"evaluate {trainer.state.step}")
        return {"eval_loss": 1.0}

    trainer = late(runner, 3, saves=saves, evaluate=evaluated)
    cadence = trainer.cadence
    monkeypatch.setattr(type(cadence), what, lambda self, step, *_: step == 2)
    assert trainer.train() == "completed"
    word = {"saves": "save 2", "evaluates": "evaluate 2"}[what]
    assert runner.done[runner.done.index(word) - 1] == "record 2"
    assert runner.done.index("start 3") > runner.done.index(word)


@pytest.mark.parametrize("saves", [True, False])
def test_it_is_recorded_before_a_stop(saves: bool) -> None:
    runner = OnItsWay(losses(3, 2, 1))
    trainer = late(runner, 3, saves=Saved(runner.done) if saves else None)
    trainer.hooks.stop_requested = lambda: trainer.state.step == 2
    assert trainer.train() == "stopped"
    assert runner.done[-3 if saves else -2 :] == ["read 2", "record 2", "save 2"][: 3 if saves else 2]


def test_if_the_next_step_fails_the_record_of_the_one_before_is_there() -> None:
    runner = OnItsWay(losses(3, 2), fails_at=3)
    with pytest.raises(ValueError, match="step 3 fails"):
        late(runner, 5).train()
    assert runner.done[-1] == "record 2"


def test_a_device_that_does_not_answer_holds_up_no_error() -> None:
    runner = OnItsWay(losses(3, 2), fails_at=3, arrives=False)
    with pytest.raises(ValueError, match="step 3 fails"):
        late(runner, 5).train()
    assert "record 2" not in runner.done


@pytest.mark.parametrize("fails_at", [0, 3])
def test_numbers_that_are_not_finite_are_named_by_their_own_step(fails_at: int) -> None:
    """Also where the next step has failed, which they may have caused."""
    runner = OnItsWay(losses(3, math.nan, 1, 1), fails_at=fails_at)
    trainer = late(runner, 4, saves=Saved(runner.done))
    with pytest.raises(PacelineError) as caught:
        trainer.train()
    [found] = caught.value.diagnostics
    assert (found.code, found.where, found.evidence["step"]) == ("training.nonfinite", "step 2", 2)
    assert not [word for word in runner.done if "save" in word] and trainer.state.step == 2


def test_the_seconds_of_steps_add_up_to_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host enqueues each step in 1 s; the device needs 5, and is read when it is done."""
    from paceline.training.loop import trainer as trainer_room

    clock = [0.0]
    monkeypatch.setattr(trainer_room.time, "perf_counter", lambda: clock[0])
    runner, ends = OnItsWay(losses(3, 2, 1)), []
    start = runner.start_window

    def enqueued(*given: Any, **named: Any) -> UnreadResult:
        clock[0] += 1.0
        ends.append(max(clock[0], ends[-1] if ends else 0.0) + 5.0)
        unread, end = start(*given, **named), ends[-1]

        def read() -> StepResult:
            clock[0] = max(clock[0], end)
            return unread.read()

        return dataclasses.replace(unread, read=read)

    monkeypatch.setattr(runner, "start_window", enqueued)
    seconds: list[float] = []
    hooks = Hooks(lambda e: seconds.append(e.step_seconds) if isinstance(e, events.Step) else None)
    dataclasses.replace(late(runner, 3), hooks=hooks).train()
    assert seconds == [6.0, 5.0, 5.0] and sum(seconds) == clock[0]


def test_a_host_that_is_late_tells_the_device_s_own_seconds() -> None:
    """Where launching takes longer than computing, the host reads a step when the next one is almost done: by
    its own clock the last step took nothing (1,060 % of an H100's peak).
    """
    runner = OnItsWay(losses(3, 2, 1))
    start, clock = runner.start_window, iter([0.25, 0.125, 0.5])

    def enqueued(*given: Any, **named: Any) -> UnreadResult:
        seconds = next(clock)
        return dataclasses.replace(start(*given, **named), seconds=lambda: seconds)

    runner.start_window = enqueued  # type: ignore[method-assign]
    heard: list[events.Step] = []
    keep: Callable[[events.Event], None] = heard.append  # type: ignore[assignment]
    dataclasses.replace(late(runner, 3), hooks=Hooks(keep)).train()
    assert [event.step_seconds for event in heard if isinstance(event, events.Step)] == [0.25, 0.125, 0.5]
