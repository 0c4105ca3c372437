"""What is a spike, by the steps before it; what is none in healthy runs; and what a limit refuses."""

from __future__ import annotations

import math
import random

import pytest
import torch

from paceline.protocols.window import StepLimit, StepResult
from paceline.training.loop.spike_watch import WARNINGS, SpikeRule, SpikeWatch, median_and_deviation
from paceline.training.loop.train_state import TrainState


def result(loss: float, norm: float | None, skipped: str | None = None, weight: int = 10) -> StepResult:
    return StepResult({"nll": loss}, {"nll": weight}, norm, skipped, weight)


def spikes(
    steps: list[tuple[float, float | None]], *, falls: bool = True, state: TrainState | None = None
) -> list[int]:
    watch = SpikeWatch(SpikeRule(window=16), state or TrainState(), falls)
    return [i for i, (loss, norm) in enumerate(steps) if watch.observe(i, result(loss, norm)) is not None]


QUIET = [(2.0 + (i % 5) / 50, 1.0 + (i % 7) / 20) for i in range(40)]


@pytest.mark.parametrize(
    ("odd", "falls"), [((4.0, 1.1), True), ((2.0, 9.0), True), ((-0.2, 9.0), False), ((90.0, 9.0), True)]
)
def test_one_value_far_above_the_steps_before_is_a_spike(odd: tuple[float, float], falls: bool) -> None:
    assert spikes([*QUIET, odd, *QUIET], falls=falls) == [40]


@pytest.mark.parametrize(
    "steps",
    [
        [(6 * math.exp(-k / 30), 3.0 * math.exp(-k / 50)) for k in range(200)],
        [(0.0, 0.0)] * 30 + [(1e-3, 1e-6)] * 30,
        [(5.0, None)] * 40,
        [(1.0, 1.0)] * 7 + [(50.0, 50.0)],
        [(math.exp(-k), math.exp(-k)) for k in range(40)],
    ],
)
def test_what_learns_or_has_learnt_is_none(steps: list[tuple[float, float | None]]) -> None:
    assert spikes(steps) == []


def test_few_steps_of_uneven_data_are_taken_for_spikes() -> None:
    found = 0
    for seed in range(20):
        rng = random.Random(seed)
        steps = [(rng.gauss(2.0, 0.3), rng.lognormvariate(0.0, 0.4)) for _ in range(1000)]
        found += len(spikes([(loss, norm) for loss, norm in steps]))
    assert found <= 20 * 1000 // 500


def test_a_rising_loss_of_rewards_is_none_and_a_new_level_is_none_for_long() -> None:
    assert spikes([(k / 10, 1.0) for k in range(-100, 100)], falls=False) == []
    level = spikes([*QUIET, *((loss + 3, norm) for loss, norm in QUIET)])
    assert level == list(range(40, 40 + len(level))) and 0 < len(level) <= 9


def test_the_steps_before_are_in_the_state() -> None:
    state = TrainState()
    assert spikes(QUIET, state=state) == []
    again = TrainState.from_json(state.to_json())
    assert spikes([(4.0, 1.0)], state=again) == [0] and len(again.recent_losses) == 16
    assert "recent_losses" not in again.facts() and again.facts()["spikes"] == 1


def test_warnings_end_and_say_so() -> None:
    watch = SpikeWatch(SpikeRule(), TrainState())
    spike = SpikeWatch(SpikeRule(), TrainState()).observe(3, result(9.0, 1.0, "spike"))
    assert spike is not None
    said = [watch.warning(spike, [f"a.jsonl:{row}" for row in range(1, 12)]) for _ in range(WARNINGS + 2)]
    assert [len(findings) for findings in said] == [1] * WARNINGS + [0, 0]
    assert "counted only" in said[WARNINGS - 1][0].what and "a.jsonl:8 and 3 more" in said[0][0].found


def test_the_middle_and_the_spread() -> None:
    assert median_and_deviation([1.0, 2.0, 3.0, 100.0]) == (2.5, pytest.approx(1.4826))
    draws = [random.Random(1).gauss(0, 1) for _ in range(1)]
    assert median_and_deviation(draws) == (draws[0], 0.0)


@pytest.mark.parametrize(
    ("loss", "norm", "refused"),
    [(1.0, 1.0, False), (3.0, 1.0, True), (1.0, 3.0, True), (math.nan, 1.0, False), (2.0, 2.0, False)],
)
def test_a_limit_refuses_what_is_above_it(loss: float, norm: float, refused: bool) -> None:
    limit = StepLimit(2.0, 2.0)
    measured = torch.tensor(norm, dtype=torch.float64)
    assert bool(limit.of_window(torch.tensor(loss), torch.tensor(10)).refuses(measured)) is refused
    assert bool(limit.refuses(measured)) is (norm > 2.0)


@pytest.mark.parametrize(("weight", "is_spike"), [(4, False), (6, True)])
def test_the_short_window_at_an_epochs_end_is_not_judged(weight: int, is_spike: bool) -> None:
    watch = SpikeWatch(SpikeRule(window=16), TrainState())
    for i, (loss, norm) in enumerate(QUIET):
        watch.observe(i, result(loss, norm))
    limit = watch.limit().of_window(torch.tensor(9.0), torch.tensor(weight))
    assert bool(limit.refuses(torch.tensor(9.0))) is is_spike
    assert (watch.observe(40, result(9.0, 9.0, weight=weight)) is not None) is is_spike
