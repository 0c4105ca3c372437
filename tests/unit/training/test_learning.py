"""A run that stops learning is named, while it runs and at its end; one that has learnt what there is, or
is merely uneven, is not.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paceline.core.diagnostics import Severity
from paceline.core.plugins.tables import ALGORITHMS
from paceline.plan.algorithms.spec import algorithm_specs
from paceline.protocols.window import StepResult, UnreadResult, Window
from paceline.runlog import events
from paceline.training.checkpointing.resume_compatibility import nothing_left
from paceline.training.loop.divergence_watch import IN_A_ROW, DivergenceWatch
from paceline.training.loop.intervals import Cadence
from paceline.training.loop.throughput import Throughput
from paceline.training.loop.train_state import BestRule, TrainState
from paceline.training.loop.trainer import Hooks, Trainer
from paceline.training.loop.window_source import Epochs

Steps = list[tuple[float, float | None]]  # loss and gradient norm


def result(loss: float, norm: float | None, skipped: str | None = None) -> StepResult:
    return StepResult({"nll": loss}, {"nll": 10}, norm, skipped, 10)


def codes(
    steps: Steps, *, falls: bool = True, state: TrainState | None = None
) -> tuple[list[str], list[str]]:
    """(said in the run, said at its end)."""
    learning = DivergenceWatch(state or TrainState(), falls)
    said = []
    for number, (loss, norm) in enumerate(steps, 1):
        learning.state.step = number
        said += [d.code for d in learning.observe(result(loss, norm))]
    return said, [d.code for d in learning.at_end()]


NONE, GONE = ["training.no_gradient"], ["training.diverged"]
SICK: dict[str, tuple[Steps, list[str]]] = {
    "no gradient for eleven of twelve steps": ([(5.7, 1.3)] + [(8.9, 0.0)] * 11, NONE),
    "frozen": ([(5.7, 0.0)] * 12, NONE),
    "in a row and then again": ([(2.0, 1.0)] * 4 + [(2.5, 0.0)] * 3 + [(2.4, 0.9)] + [(2.4, 0.0)] * 5, NONE),
    "a rate of 1000": ([(5.7, 1.3)] + [(10.0**k, 1e4) for k in range(2, 9)], GONE),
    "runs away and goes flat": ([(5.7, 1.3), (2e7, 3e5)] + [(2e7, 0.0)] * 4, [*NONE, *GONE]),
    "runs away slowly": (
        [(2.0 - k / 100, 1.0) for k in range(30)] + [(2.0 + k / 4, 9.0) for k in range(40)],
        GONE,
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_a_run_that_stops_learning_is_named_once_in_it_and_at_its_end(name: str) -> None:
    steps, expected = SICK[name]
    said, at_end = codes(steps)
    assert sorted(said) == sorted(at_end) == sorted(expected)


def noisy(seed: int, levels: tuple[float, ...], spread: float, count: int = 400) -> Steps:
    rng = random.Random(seed)
    return [(max(1e-3, rng.gauss(rng.choice(levels), spread)), rng.uniform(0.01, 30)) for _ in range(count)]


WELL: dict[str, Steps] = {
    "learns": [(6 * math.exp(-k / 20), 1.0) for k in range(100)],
    "has learnt it all": [(math.exp(-k), math.exp(-k)) for k in range(30)] + [(0.0, 0.0)] * 30,
    "a legitimately tiny gradient": [(0.7, 1e-30)] * 50,
    "a loss that rounds to little, without a gradient": [(1e-6, 0.0)] * 50,
    "a single step without": [(2.0, 1.0)] * 5 + [(2.0, 0.0)] * (IN_A_ROW - 1) + [(2.0, 1.0)] * 5,
    "uneven data in rows of one": noisy(1, (0.3, 2.5), 0.3),
    "single pairs": noisy(2, (0.05, 0.7, 3.0), 0.5),
    "ipo, whose loss begins at 25": noisy(3, (25.0, 60.0), 10.0),
    "a spike that heals": [(2.0, 1.0)] * 50 + [(40.0, 50.0)] + [(2.1, 1.0)] * 50,
    "from 1e-3 up a little": [(0.001 + k / 1000, 0.1) for k in range(100)],
    "one step": [(5.7, 1.3)],
    "no step": [],
    "a norm that nobody knows": [(5.7, None)] * 10,
}


@pytest.mark.parametrize("name", WELL)
def test_a_healthy_run_is_left_in_peace(name: str) -> None:
    assert codes(WELL[name]) == ([], [])


@pytest.mark.parametrize("seed", range(30))
def test_uneven_rows_never_raise_a_false_alarm(seed: int) -> None:
    assert codes(noisy(seed, (0.1, 0.5, 1.0, 2.5, 4.0), 0.4)) == ([], [])


def test_losses_that_may_rise_are_only_looked_at_for_their_gradient() -> None:
    assert codes([(0.01, 1.0)] + [(90.0, 1.0)] * 50, falls=False) == ([], [])
    assert codes([(-0.3, 0.0)] * 5, falls=False) == (NONE, NONE)
    assert codes([(0.0, 0.0)] * 5, falls=False) == ([], []), "rollout.no_spread says that"
    assert {name: ALGORITHMS.load(name).loss_falls for name in ALGORITHMS.names()} == {
        spec.name: not spec.on_policy for spec in algorithm_specs()
    }


def test_skipped_steps_count_for_nothing() -> None:
    learning = DivergenceWatch(TrainState())
    for _ in range(10):
        assert learning.observe(result(0.0, None, "no_labels")) == []
        assert learning.observe(result(3.0, math.inf, "overflow")) == []
    assert learning.at_end() == [] and learning.state.trained_steps == 0


def test_a_resumed_run_knows_where_it_began() -> None:
    state = TrainState(step=10, first_loss=2.0, trained_steps=10)
    again = TrainState.from_json(state.to_json())
    assert codes([(900.0, 5.0)] * 4, state=again)[1] == GONE
    assert codes([(900.0, 5.0)] * 4)[1] == [], "without it, that is where the run begins"


class Runner:
    def __init__(self, steps: Steps) -> None:
        self.results = [result(*step) for step in steps]

    def start_window(self, *_: Any, **__: Any) -> UnreadResult:
        found = self.results.pop(0)
        return UnreadResult(lambda: found)


class Algorithm:
    loss_falls = True

    def windows(self, source: Any, handles: Any) -> Iterator[Window]:
        yield from source


def trainer_of(runner: Any, steps: int, heard: list[Any]) -> Trainer:
    """A trainer of so many steps, without a model; ``heard`` gets its events."""
    return Trainer(
        runner=runner,
        algorithm=Algorithm(),
        handles={},
        windows=[Window(i, 0, []) for i in range(steps)],
        epochs=Epochs((steps,), steps),
        cadence=Cadence(steps, 1, False, "no", 1, "no", 1),
        lr=lambda step: 1e6,
        max_grad_norm=0.0,
        seed_for=lambda step, micro: 0,
        throughput=Throughput(0, 1, None),
        device=torch.device("cpu"),
        agree=lambda wish: wish,
        hooks=Hooks(heard.append),
        best=BestRule(),
    )


def test_the_trainer_says_it_as_warnings_to_whoever_listens() -> None:
    steps, heard = SICK["no gradient for eleven of twelve steps"][0], list[Any]()
    trainer = trainer_of(Runner(steps), 12, heard)
    assert trainer.train() == "completed"
    notices = [e.diagnostic for e in heard if isinstance(e, events.Notice)]
    assert [(d.code, d.where, d.severity) for d in notices] == [
        ("training.no_gradient", "step 4", Severity.WARNING)
    ]
    [last] = trainer.learning.at_end()
    assert "11 of 12 steps" in last.what and trainer.state.steps_without_gradient == 11


class Saved:
    """Saves that are durable at once; ``steps``: those of which."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def save(self, step: int) -> bool:
        self.steps.append(step)
        return True

    def settle(self, *, wait: bool) -> bool:
        return False

    def rescue(self) -> None: ...


def test_a_callback_that_asks_to_stop_ends_it_early_and_a_signal_stops_it() -> None:
    for signalled, outcome in ((False, "early_stopped"), (True, "stopped")):
        trainer, saves = (
            trainer_of(Runner(SICK["no gradient for eleven of twelve steps"][0]), 12, []),
            Saved(),
        )
        trainer.hooks.should_stop = lambda: trainer.state.step == 2  # noqa: B023
        trainer.hooks.stop_requested = lambda: signalled and trainer.state.step == 2  # noqa: B023
        trainer.saves = saves
        # Saving is off: only a signal's stop is saved, from which the run can go on
        saved = [2] if signalled else []
        assert (trainer.train(), trainer.state.step, saves.steps) == (outcome, 2, saved)
        assert trainer.ended() == (None if signalled else outcome), "what a resume from there finds"
        if not signalled:
            assert (trainer.train(), trainer.state.step) == (outcome, 2)
            assert "a callback ended" in nothing_left(outcome, trainer.state, 12).what


@pytest.mark.parametrize(
    ("step", "gainless", "outcome"), [(3, 2, "early_stopped"), (12, 0, "completed"), (3, 1, None)]
)
def test_a_resumed_run_that_had_ended_trains_nothing(step: int, gainless: int, outcome: str | None) -> None:
    trainer = trainer_of(Runner(SICK["no gradient for eleven of twelve steps"][0]), 12, [])
    trainer.best = BestRule(patience=2)
    trainer.state.step, trainer.state.evals_without_gain = step, gainless
    assert trainer.ended() == outcome
    if outcome is not None:
        assert (trainer.train(), trainer.state.step) == (outcome, step)


def test_a_step_says_how_long_its_rows_were_waited_for() -> None:
    heard = list[Any]()
    trainer = trainer_of(Runner([(2.0, 1.0)] * 3), 3, heard)

    def slow() -> Iterator[Window]:
        for number in range(3):
            if number == 1:
                time.sleep(0.2)
            yield Window(number, 0, [])

    trainer.windows = slow()
    trainer.train()
    first, second, third = (e.data_seconds for e in heard if isinstance(e, events.Step))
    assert second >= 0.2 and max(first, third) < second
