"""Pairs without a reference: each loss, its gradient and its statistics against formulas of their own in
plain Python, exact under any split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from test_dpo import answers, batch_of, log_sigmoid
from torch import Tensor

from paceline.algorithms.preference.cpo import CPO, SimPO
from paceline.algorithms.preference.orpo import ORPO, log_odds
from paceline.algorithms.preference.pair_policy import PairPolicy
from paceline.config.sections.algorithms.preference import CpoOptions
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Role

BETA = 0.3
Pair = Callable[[float, float], float]


def smoothed(gap: float, epsilon: float = 0.0) -> float:
    return -(1 - epsilon) * log_sigmoid(gap) - epsilon * log_sigmoid(-gap)


def odds(logp: float) -> float:
    return logp - math.log1p(-math.exp(logp))


#: algorithm, its options, the pair's loss by the definition, whether answers are compared by means over
#: tokens, the weight of the SFT term
CASES: dict[str, tuple[type[PairPolicy], dict[str, Any], Pair, bool, float]] = {
    "cpo": (CPO, {}, lambda c, r: smoothed(BETA * (c - r)), False, 1.0),
    "cpo smoothed": (CPO, {"label_smoothing": 0.2}, lambda c, r: smoothed(BETA * (c - r), 0.2), False, 1.0),
    "cpo hinge": (
        CPO,
        {"loss_type": "hinge", "cpo_alpha": 0.5},
        lambda c, r: max(0.0, 1 - BETA * (c - r)),
        False,
        0.5,
    ),
    "cpo ipo": (
        CPO,
        {"loss_type": "ipo", "cpo_alpha": 0.0},
        lambda c, r: (c - r - 1 / (2 * BETA)) ** 2,
        True,
        0.0,
    ),
    "cpo simpo": (
        CPO,
        {"loss_type": "simpo", "simpo_gamma": 0.4, "label_smoothing": 0.1},
        lambda c, r: smoothed(BETA * (c - r) - 0.4, 0.1),
        True,
        1.0,
    ),
    "cpo simpo's gamma": (
        CPO,
        {"loss_type": "simpo"},
        lambda c, r: smoothed(BETA * (c - r) - 0.5),
        True,
        1.0,
    ),
    "orpo": (ORPO, {}, lambda c, r: BETA * smoothed(odds(c) - odds(r)), True, 1.0),
    "orpo, means": (
        ORPO,
        {"mean_of_means": True},
        lambda c, r: BETA * smoothed(odds(c) - odds(r)),
        True,
        1.0,
    ),
    "simpo": (SimPO, {}, lambda c, r: smoothed(BETA * (c - r) - 0.5), True, 0.0),
    "simpo with all": (
        SimPO,
        {"simpo_gamma": 1.2, "label_smoothing": 0.2, "cpo_alpha": 0.7},
        lambda c, r: smoothed(BETA * (c - r) - 1.2, 0.2),
        True,
        0.7,
    ),
}


def made(case: str) -> PairPolicy:
    kind, options, *_ = CASES[case]
    return kind(beta=BETA, **options)  # type: ignore[call-arg]


def expected(case: str, batch: Batch, logprobs: Tensor) -> dict[str, float]:
    """Sums over the pairs of the loss, of the SFT term where there is one, and of every statistic."""
    kind, options, loss, means, alpha = CASES[case]
    spoken = answers(batch, logprobs)
    sums: dict[str, float] = {}
    for chosen, rejected in zip(spoken[::2], spoken[1::2], strict=True):
        c, r = (sum(own) / (len(own) if means else 1) for own in (chosen, rejected))
        told = {
            "pairs": loss(c, r),
            "sft": -alpha * sum(chosen) / (len(chosen) if options.get("mean_of_means") else 1),
            "rewards/chosen": BETA * c,
            "rewards/rejected": BETA * r,
            "rewards/accuracies": float(c > r),
            "rewards/margins": BETA * (c - r),
            "logps/chosen": c,
            "logps/rejected": r,
        }
        if kind is ORPO:
            told |= {"log_odds_ratio": log_sigmoid(odds(c) - odds(r)), "log_odds_chosen": odds(c) - odds(r)}
        for name, value in told.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_statistics_equal_their_formulas(case: str) -> None:
    algorithm = made(case)
    batch, logprobs = batch_of(9, seed=3)
    right = expected(case, batch, logprobs)
    losses = algorithm.losses(Role.POLICY, {"logprobs": logprobs}, batch)
    assert set(losses) == {"pairs", *(["sft"] if CASES[case][4] else [])} == set(algorithm.weights(batch))
    for name, value in losses.items():
        assert float(value.detach()) == pytest.approx(right[name], abs=1e-10)
    weights = {name: int(value) for name, value in algorithm.weights(batch).items()}
    assert weights["pairs"] == 9
    tokens = sum(map(len, answers(batch, logprobs)[::2]))
    assert weights.get("sft") in (None, 9 if CASES[case][1].get("mean_of_means") else tokens)
    metrics = {
        name: float(v) for name, v in algorithm.metrics(Role.POLICY, {"logprobs": logprobs}, batch).items()
    }
    assert (
        set(metrics)
        == {f"{name}/pairs" for name in right if name not in ("pairs", "sft")}
        == set(algorithm.train_metrics)
    )
    for name, value in metrics.items():
        assert value == pytest.approx(right[name.removesuffix("/pairs")], abs=1e-10), name
    sum(losses.values()).backward()
    for place in range(0, logprobs.numel(), 5):  # the slope by a difference of the formulas
        moved = []
        for sign in (1, -1):
            shifted = logprobs.detach().clone()
            shifted[place] += sign * 1e-6
            other = expected(case, batch, shifted)
            moved.append(other["pairs"] + other["sft"])
        assert float(logprobs.grad[place]) == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_cut_of_the_pairs_changes_no_sum(case: str) -> None:
    algorithm = made(case)
    whole, logprobs = batch_of(9, seed=5, fillers=2)
    bounds, labelled = whole.cu_seqlens.tolist(), (whole.labels != IGNORE_INDEX).flatten().tolist()
    sums: dict[str, float] = {}
    for first, last in ((0, 4), (4, 14), (14, 22)):  # documents; the last piece ends in fillers
        start, end = bounds[first], bounds[last]
        part = replace(
            whole,
            labels=whole.labels[:, start:end],
            cu_seqlens=whole.cu_seqlens[first : last + 1] - start,
            document_ids=whole.document_ids[first:last],
        )
        own = {"logprobs": logprobs.detach()[sum(labelled[:start]) : sum(labelled[:end])]}
        found = {**algorithm.losses(Role.POLICY, own, part), **algorithm.metrics(Role.POLICY, own, part)}
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    right = expected(case, whole, logprobs)
    for name, value in sums.items():
        assert value == pytest.approx(
            right[name.removesuffix("/pairs") if name != "pairs" else name], abs=1e-10
        ), name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scale", [1e4, 1e-9, 0.0])
def test_a_policy_that_is_sure_gives_numbers(case: str, scale: float) -> None:
    """Answers of no likelihood at all, and of likelihood 1, in float32: no overflow in any loss or slope."""
    batch, logprobs = batch_of(3, seed=2)
    scaled = (logprobs.detach().float() * scale).requires_grad_()
    value = torch.stack(list(made(case).losses(Role.POLICY, {"logprobs": scaled}, batch).values())).sum()
    value.backward()
    assert bool(value.isfinite()) and bool(scaled.grad.isfinite().all())


@pytest.mark.parametrize("case", CASES)
def test_no_reference_is_asked(case: str) -> None:
    assert (made(case).reference_roles, made(case).frozen) == ((), ())


def test_an_option_that_the_loss_does_not_have_is_refused() -> None:
    for options in (
        {"simpo_gamma": 0.5},
        {"loss_type": "hinge", "label_smoothing": 0.1},
        {"loss_type": "alphapo"},
    ):
        with pytest.raises(ValidationError):
            CpoOptions.model_validate(options)
    assert math.isclose(CPO(loss_type="simpo").gamma, 0.5)


def test_log_odds_of_any_probability_are_a_number() -> None:
    """Against the definition where that can be computed, and finite with a finite slope where it cannot."""
    logps = torch.tensor([-1e-6, -0.01, -0.6, -0.7, -3.0, -50.0], dtype=torch.float64)
    right = logps - torch.log(1 - torch.exp(logps))
    assert torch.allclose(log_odds(logps), right, rtol=1e-9)
    for edge in (0.0, -1e-30, -1e5):
        x = torch.tensor([edge], requires_grad=True)
        y = log_odds(x).sum()
        y.backward()
        assert bool(y.isfinite()) and bool(x.grad.isfinite().all())
