"""Python collects garbage between steps, at a stated interval, and never within one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_learning import Runner, trainer_of

from paceline.training.loop import intervals
from paceline.training.loop.intervals import EVERY, collected_between_steps


@pytest.fixture(autouse=True)
def thresholds_of_python() -> Iterator[None]:
    """As an interpreter begins; the suite's own are 70 times as many objects."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@contextmanager
def collections() -> Iterator[list[int]]:
    """The generations that were collected, as they are."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def step() -> None:
    """As many objects in cycles as start three collections where Python decides."""
    for _ in range(3 * gc.get_threshold()[0]):
        cycle: list[Any] = []
        cycle.append(cycle)


def test_no_step_is_interrupted_and_every_fiftieth_is_followed_by_a_collection() -> None:
    with collections() as found, collected_between_steps() as collector:
        found.clear()
        after = []
        for number in range(1, 2 * EVERY + 1):
            seen = len(found)
            step()
            assert len(found) == seen
            collector.between_steps(number)
            after += [number] if len(found) > seen else []
    assert after[-1] == 2 * EVERY and EVERY in after
    with collections() as found:  # and as before afterwards
        step()
        assert found


def test_a_step_that_leaves_many_objects_is_followed_by_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "MANY", gc.get_threshold()[0])
    with collections() as found, collected_between_steps() as collector:
        found.clear()
        collector.between_steps(1)
        assert not found
        step()
        collector.between_steps(2)
        assert found == [2]


def test_what_exists_at_the_start_is_not_looked_at_again() -> None:
    assert gc.get_freeze_count() == 0
    with collected_between_steps():
        assert gc.get_freeze_count() > 0 and not gc.isenabled()
    assert gc.get_freeze_count() == 0 and gc.isenabled()


def test_a_trainer_has_its_steps_within(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(intervals.Garbage, "between_steps", lambda self, number: made.append(number))
    runner = Runner([(2.0, 1.0)] * 3)
    train, within = runner.start_window, []

    def watched(*given: Any, **named: Any) -> Any:
        within.append(gc.isenabled())
        return train(*given, **named)

    monkeypatch.setattr(runner, "start_window", watched)
    assert trainer_of(runner, 3, []).train() == "completed"
    assert within == [False] * 3 and made == [1, 2, 3] and gc.isenabled()
