"""DeepSpeed's schedules, step by step as the installed DeepSpeed moves them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.training.loop.lr_schedules import DEEPSPEED, learning_rate_schedule

STEPS = 130
BASE = 1e-3


@pytest.fixture
def theirs() -> Iterator[Any]:
    """The learning rates of a DeepSpeed schedule as its engine uses them: read, update, then ``step``."""
    module = pytest.importorskip("deepspeed.runtime.lr_schedules")
    level = module.logger.level
    module.logger.setLevel(logging.CRITICAL)

    def rates(name: str, **params: Any) -> list[float]:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
        schedule = getattr(module, name)(optimizer, **params)
        found = []
        for _ in range(STEPS):
            found.append(float(optimizer.param_groups[0]["lr"]))
            schedule.step()
        return found

    yield rates
    module.logger.setLevel(level)


def assert_same(ours: list[float], rates: list[float], about: Any) -> None:
    assert len(set(rates)) > 2, "a schedule that does not move proves nothing"
    for step, (mine, expected) in enumerate(zip(ours, rates, strict=True)):
        assert abs(mine - expected) <= 1e-12, (about, step, mine, expected)


def rates_of(name: str, warmup: int, total: int, kwargs: dict[str, Any]) -> list[float]:
    rate = learning_rate_schedule(name, BASE, warmup, total, kwargs)
    return [rate(step) for step in range(STEPS)]


WARMUPS = list(itertools.product((3, 10, 100), ("log", "linear"), (0.0, 1e-5), (5, 50, 120)))


@pytest.mark.parametrize(("warmup", "kind", "low", "total"), WARMUPS)
def test_the_three_warm_ups(theirs: Any, warmup: int, kind: str, low: float, total: int) -> None:
    common = {"warmup_num_steps": warmup, "warmup_type": kind}
    kwargs = {"warmup_type": kind, "warmup_min_lr": low}
    assert_same(
        rates_of("warmup_lr", warmup, total, kwargs),
        theirs("WarmupLR", warmup_max_lr=BASE, warmup_min_lr=low, **common),
        kwargs,
    )
    assert_same(
        rates_of("warmup_decay_lr", warmup, total, kwargs),
        theirs("WarmupDecayLR", warmup_max_lr=BASE, warmup_min_lr=low, total_num_steps=total, **common),
        kwargs,
    )
    ratios = {"warmup_type": kind, "warmup_min_ratio": low * 100, "cos_min_ratio": 0.1}
    assert_same(
        rates_of("warmup_cosine_lr", warmup, 7, {**ratios, "total_num_steps": total}),
        theirs("WarmupCosineLR", total_num_steps=total, **ratios, warmup_num_steps=warmup),
        ratios,
    )


def test_what_is_left_out_has_deepspeeds_default(theirs: Any) -> None:
    assert_same(
        rates_of("warmup_lr", 20, 90, {}), theirs("WarmupLR", warmup_max_lr=BASE, warmup_num_steps=20), {}
    )
    ours = rates_of("warmup_cosine_lr", 20, 90, {})
    assert_same(ours, theirs("WarmupCosineLR", total_num_steps=90, warmup_num_steps=20), {})
    cycle = {"cycle_min_lr": 1e-4}
    theirs_ = theirs("OneCycle", **cycle, cycle_max_lr=BASE, cycle_momentum=False)
    assert_same(rates_of("one_cycle", 0, 90, cycle), theirs_, cycle)
    ours = rates_of("lr_range_test", 0, 90, {})
    assert_same(ours, theirs("LRRangeTest", lr_range_test_min_lr=BASE), {})


CYCLES = list(itertools.product((3, 10), (None, 7, 20), (0, 4), (None, 3), (0, 5), (0.0, 0.5)))


@pytest.mark.parametrize("values", CYCLES)
def test_one_cycle(theirs: Any, values: tuple[Any, ...]) -> None:
    names = (
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "decay_lr_rate",
    )
    kwargs = {"cycle_min_lr": 1e-4, **dict(zip(names, values, strict=True))}
    expected = theirs("OneCycle", **kwargs, cycle_max_lr=BASE, cycle_momentum=False)
    assert_same(rates_of("one_cycle", 0, 90, kwargs), expected, kwargs)


@pytest.mark.parametrize("staircase", [False, True])
def test_the_range_test(theirs: Any, staircase: bool) -> None:
    kwargs = {
        "lr_range_test_step_size": 7,
        "lr_range_test_step_rate": 2.0,
        "lr_range_test_staircase": staircase,
    }
    expected = theirs("LRRangeTest", lr_range_test_min_lr=BASE, **kwargs)
    assert_same(rates_of("lr_range_test", 0, 90, kwargs), expected, kwargs)


def test_deepspeed_has_no_other_schedule() -> None:
    """A schedule that a new version brings is found here."""
    module = pytest.importorskip("deepspeed.runtime.lr_schedules")
    assert len(module.VALID_LR_SCHEDULES) == len(DEEPSPEED)


def test_no_warm_up_is_none_and_options_are_checked() -> None:
    assert rates_of("warmup_lr", 0, 90, {}) == [BASE] * STEPS
    for kwargs in ({"num_cycles": 2}, {"warmup_type": "cubic"}):
        with pytest.raises(ConfigError, match="training.lr_scheduler_kwargs"):
            learning_rate_schedule("warmup_lr", BASE, 5, 90, kwargs)
    with pytest.raises(ConfigError, match="training.lr_scheduler_kwargs"):
        learning_rate_schedule("one_cycle", BASE, 5, 90, {})
