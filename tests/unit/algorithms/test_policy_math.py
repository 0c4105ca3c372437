"""Advantages, divergences and policy losses against loops written from the papers, in float64 to 1e-10."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import (
    generalised_advantages,
    group_advantages,
    missing_end_penalty,
    moments,
    token_rewards,
    whiten,
)
from paceline.algorithms.on_policy.losses import (
    KlCoefficient,
    clipped_surrogate,
    divergence,
    log_ratios,
    loss_weight,
    rollout_correction,
    token_shares,
    value_loss,
)

LENGTHS = [3, 1, 5, 2]
SEGMENTS = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))


def drawn(seed: int, scale: float = 1.0) -> Tensor:
    return (
        torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    )


def close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def per_answer(values: Tensor) -> list[list[float]]:
    return [values[i == SEGMENTS].tolist() for i in range(len(LENGTHS))]


def test_generalised_advantages_are_the_sum_of_discounted_errors() -> None:
    rewards, values, gamma, lam = drawn(1), drawn(2), 0.9, 0.8
    advantages, returns = generalised_advantages(rewards, values, SEGMENTS, discount=gamma, trace=lam)
    expected = []
    for r, v in zip(per_answer(rewards), per_answer(values), strict=True):
        errors = [r[t] + (gamma * v[t + 1] if t + 1 < len(r) else 0.0) - v[t] for t in range(len(r))]
        expected += [
            sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(r))) for t in range(len(r))
        ]
    close(advantages, expected)
    close(returns, (torch.tensor(expected, dtype=torch.float64) + values).tolist())
    # λ = 1: return minus value
    whole, _ = generalised_advantages(rewards, values, SEGMENTS, discount=1.0, trace=1.0)
    close(
        whole,
        [
            sum(r[t:]) - v[t]
            for r, v in zip(per_answer(rewards), per_answer(values), strict=True)
            for t in range(len(r))
        ],
    )
    empty, _ = generalised_advantages(rewards[:0], values[:0], SEGMENTS[:0])
    assert empty.shape == (0,)


def test_whitening_over_pieces_is_whitening_over_all() -> None:
    values = drawn(3, 4.0) + 2.0
    total = moments(values[:4]) + moments(values[4:])
    mean, spread = statistics.fmean(values.tolist()), statistics.variance(values.tolist())
    close(whiten(values, total), [(x - mean) / math.sqrt(spread + 1e-8) for x in values.tolist()])
    close(
        whiten(values, total, shift_mean=False),
        [(x - mean) / math.sqrt(spread + 1e-8) + mean for x in values.tolist()],
    )
    close(whiten(values[:1], moments(values[:1])), [0.0])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_advantages(scale: str) -> None:
    rewards = torch.tensor(
        [1.0, 0.0, 0.0, 2.0, 0.3, 0.3, 0.3, 5.0, math.nan, 1.0, -1.0, math.nan], dtype=torch.float64
    )
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3])
    found, spread = group_advantages(rewards, groups, scale=scale)
    judged = [r for r in rewards.tolist() if not math.isnan(r)]
    expected, spreads = [], []
    for r, g in zip(rewards.tolist(), groups.tolist(), strict=True):
        members = [
            x for x, h in zip(rewards.tolist(), groups.tolist(), strict=True) if h == g and not math.isnan(x)
        ]
        std = statistics.stdev(members) if len(set(members)) > 1 else 0.0
        divisor = {"group": std + 1e-4, "batch": statistics.stdev(judged) + 1e-4, "none": 1.0}[scale]
        flat = math.isnan(r) or len(set(members)) == 1
        expected.append(0.0 if flat else (r - statistics.fmean(members)) / divisor)
        spreads.append(std)
    close(found, expected)
    close(spread, spreads)
    assert found[4:8].abs().max() == 0  # equal rewards, and a group of one that was judged: exactly nothing
    lone, _ = group_advantages(rewards[:1], groups[:1], scale=scale)
    assert lone.tolist() == [0.0]


def test_rewards_of_tokens() -> None:
    scores, kl = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64), drawn(4)
    found = token_rewards(scores, kl, SEGMENTS, coefficient=0.1)
    expected = []
    for score, answer in zip(scores.tolist(), per_answer(kl), strict=True):
        expected += [-0.1 * x for x in answer[:-1]] + [-0.1 * answer[-1] + score]
    close(found, expected)
    close(token_rewards(scores, None, SEGMENTS, coefficient=9.0), [0, 0, 1, 2, 0, 0, 0, 0, 3, 0, 4])
    close(missing_end_penalty(scores, torch.tensor([True, False, True, False]), 1.5), [1.0, 0.5, 3.0, 2.5])


def test_divergences() -> None:
    p, q = drawn(5), drawn(6)
    close(divergence(p, q, "k1"), [a - b for a, b in zip(p.tolist(), q.tolist(), strict=True)])
    close(divergence(p, q, "k2"), [(a - b) ** 2 / 2 for a, b in zip(p.tolist(), q.tolist(), strict=True)])
    close(
        divergence(p, q, "k3"),
        [math.exp(b - a) - 1 - (b - a) for a, b in zip(p.tolist(), q.tolist(), strict=True)],
    )
    with pytest.raises(ValueError, match="k1, k2, k3"):
        divergence(p, q, "k4")
    # k1 and k3 have the KL as their expectation under p: exactly, by summing over a whole vocabulary
    a, b = torch.log_softmax(p, 0), torch.log_softmax(q, 0)
    exact = float((a.exp() * (a - b)).sum())
    for estimator in ("k1", "k3"):
        assert float((a.exp() * divergence(a, b, estimator)).sum()) == pytest.approx(exact, abs=1e-12)


def test_the_adaptive_coefficient_moves_toward_its_target() -> None:
    beta = KlCoefficient(0.1, target=6.0, horizon=10000)
    beta.update(12.0, 256)  # error 1 is clipped to 0.2
    assert beta.value == pytest.approx(0.1 * (1 + 0.2 * 256 / 10000), abs=1e-15)
    before = beta.value
    beta.update(5.7, 100)
    assert beta.value == pytest.approx(before * (1 - 0.05 * 100 / 10000), abs=1e-15)
    beta.update(math.nan, 100)
    other = KlCoefficient(9.0, 6.0, 10000)
    other.load_state(beta.state())
    assert other.value == beta.value
    fixed = KlCoefficient(0.3)
    fixed.update(99.0, 1)
    fixed.load_state(fixed.state())
    assert fixed.value == 0.3


@pytest.mark.parametrize(("high", "delta"), [(0.2, None), (0.28, None), (0.2, 1.5)])
def test_the_clipped_surrogate_and_its_gradient(high: float, delta: float | None) -> None:
    new, old, advantages = drawn(7, 0.5).requires_grad_(), drawn(8, 0.5), drawn(9)
    found = clipped_surrogate(new - old, advantages, epsilon_low=0.2, epsilon_high=high, delta=delta)
    expected, gradient = [], []
    for x, y, a in zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True):
        ratio = math.exp(x - y)
        bounded = ratio if delta is None else min(ratio, delta)
        clipped = min(max(ratio, 0.8), 1 + high)
        expected.append(-min(bounded * a, clipped * a))
        free = bounded * a <= clipped * a and (delta is None or ratio < delta)
        gradient.append(-ratio * a if free else 0.0)
    close(found.loss, expected)
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    close(new.grad, gradient)
    took = found.low | found.high
    assert took.any() and not took.all()
    if delta is None:
        assert [g == 0 for g in gradient] == took.tolist()


def test_value_loss_takes_the_worse_of_both() -> None:
    values, old, returns = drawn(10), drawn(11), drawn(12)
    found, clipped = value_loss(values, old, returns, clip=0.2)
    expected, took = [], []
    for v, o, r in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        near = min(max(v, o - 0.2), o + 0.2)
        expected.append(0.5 * max((v - r) ** 2, (near - r) ** 2))
        took.append((near - r) ** 2 > (v - r) ** 2)
    close(found, expected)
    assert clipped.tolist() == took and any(took)
    close(
        value_loss(values, old, returns, clip=None)[0],
        [0.5 * (v - r) ** 2 for v, r in zip(values.tolist(), returns.tolist(), strict=True)],
    )


def test_ratios_of_tokens_and_of_sequences() -> None:
    new, old, lengths = drawn(13), drawn(14), torch.tensor(LENGTHS)
    close(log_ratios(new, old, SEGMENTS, lengths, "token"), (new - old).tolist())
    means = [statistics.fmean(answer) for answer in per_answer(new - old)]
    close(log_ratios(new, old, SEGMENTS, lengths, "sequence"), [means[i] for i in SEGMENTS.tolist()])


def test_normalisations_divide_as_their_papers_do() -> None:
    loss, lengths = drawn(15), torch.tensor(LENGTHS)
    answers, tokens = torch.tensor(len(LENGTHS)), torch.tensor(sum(LENGTHS))

    def mean(kind: str) -> float:
        weight = loss_weight(kind, answers, tokens, 7)
        assert weight.dtype == torch.int64
        return float((loss * token_shares(kind, SEGMENTS, lengths)).sum() / weight)

    assert mean("grpo") == pytest.approx(statistics.fmean(map(statistics.fmean, per_answer(loss))), abs=1e-12)
    assert mean("dapo") == mean("bnpo") == pytest.approx(statistics.fmean(loss.tolist()), abs=1e-12)
    assert mean("dr_grpo") == pytest.approx(sum(sum(a) / 7 for a in per_answer(loss)) / 4, abs=1e-12)
    with pytest.raises(ValueError, match="dr_grpo"):
        loss_weight("mean", answers, tokens, 7)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_correction_for_another_rollout_policy(level: str, mode: str) -> None:
    old, rollout = drawn(16), drawn(17)
    found = rollout_correction(old.requires_grad_(), rollout, SEGMENTS, 4, level=level, mode=mode, cap=1.3)
    assert not found.requires_grad
    gaps = (old - rollout).tolist()
    if level == "sequence":
        totals = [sum(answer) for answer in per_answer(old.detach() - rollout)]
        gaps = [totals[i] for i in SEGMENTS.tolist()]
    weights = [math.exp(g) for g in gaps]
    close(found, [min(w, 1.3) if mode == "truncate" else (0.0 if w > 1.3 else w) for w in weights])
    assert any(w > 1.3 for w in weights) and any(w < 1.3 for w in weights)
