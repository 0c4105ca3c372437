"""When things happen, and which evaluation is the best."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
from transformers.trainer_callback import TrainerState

from paceline.config.registries.evaluation_metrics import evaluation_metrics
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_steps import every
from paceline.training.loop.intervals import Cadence
from paceline.training.loop.train_state import BestRule, TrainState, best_rule


def cadence(**changes: object) -> Cadence:
    values: dict[str, object] = {
        "total_steps": 20,
        "logging_steps": 5,
        "logging_first_step": False,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "save_strategy": "steps",
        "save_steps": 8,
    }
    return Cadence(**{**values, **changes})  # type: ignore[arg-type]


def test_steps() -> None:
    c = cadence()
    assert [s for s in range(1, 21) if c.logs(s)] == [5, 10, 15, 20]
    assert [s for s in range(1, 21) if c.evaluates(s, False)] == [6, 12, 18, 20]
    assert [s for s in range(1, 21) if c.saves(s, False, False)] == [8, 16, 20]


def test_epoch_best_and_no() -> None:
    assert cadence(eval_strategy="epoch").evaluates(7, True) and not cadence(eval_strategy="epoch").evaluates(
        7, False
    )
    assert not cadence(eval_strategy="no").evaluates(20, True)
    assert cadence(save_strategy="best").saves(7, False, True) and not cadence(save_strategy="best").saves(
        7, False, False
    )
    assert not cadence(save_strategy="no").saves(20, True, True)
    assert cadence(keep_best=True).saves(7, False, True) and not cadence(keep_best=True).saves(
        7, False, False
    )
    assert cadence(logging_first_step=True).logs(1)


def test_an_interval_below_one_is_a_share_of_the_run() -> None:
    """As TrainerState counts them."""
    for interval, steps in itertools.product((0.001, 0.1, 0.25, 1 / 3, 0.7, 7), (1, 7, 10, 30, 99)):
        judge, given = TrainerState(), SimpleNamespace(logging_steps=interval, eval_steps=1, save_steps=1)
        judge.compute_steps(given, steps)
        assert every(interval, steps) == judge.logging_steps, (interval, steps)


@pytest.mark.parametrize("algorithm", ["sft", "distillation", "kto", "grpo"])
def test_a_loss_or_a_divergence_is_better_when_it_is_smaller(algorithm: str) -> None:
    names = evaluation_metrics(algorithm)
    greater = {n: best_rule(TrainingSection(metric_for_best_model=n), names).greater_is_better for n in names}
    smaller = {"eval_loss", "eval_nll", "eval_kl", "eval_truncated"}
    assert {name for name in names if not greater[name]} == smaller & set(names)


@pytest.mark.parametrize(
    ("greater", "values", "best"), [(False, [3.0, 2.0, 2.5], 2.0), (True, [0.1, math.nan, 0.4, 0.3], 0.4)]
)
def test_best(greater: bool, values: list[float], best: float) -> None:
    rule, state = BestRule("eval_loss", greater), TrainState()
    for step, value in enumerate(values, 1):
        state.step = step
        rule.record({"eval_loss": value}, state)
    assert state.best_metric == best and state.best_step == values.index(best) + 1


def test_early_stopping_counts_gains_above_the_threshold_only() -> None:
    rule, state = BestRule(patience=2, threshold=0.1), TrainState()
    for value, exhausted in ((1.0, False), (0.95, False), (0.94, True)):
        rule.record({"eval_loss": value}, state)
        assert rule.exhausted(state) is exhausted


def test_state_survives_json_and_foreign_keys() -> None:
    state = TrainState(step=3, best_metric=0.5)
    assert TrainState.from_json({**state.to_json(), "unknown": 1}) == state
