"""REINFORCE++'s advantages, loss and everything it reports, against loops over answers and tokens in
float64; the same on several ranks.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from rollout_batches import Rank, alone
from torch import Tensor

from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.reinforce_plus_plus import ReinforcePlusPlus
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

# tokens of each answer to two prompts of three; one is empty, the fifth was not judged and has no loss
LENGTHS = [
    3,
    1,
    4,
    0,
    2,
    5,
]
LEARNED = [3, 1, 4, 0, 0, 5]
SCORES = [1.3, -0.7, 0.4, 2.0, math.nan, 3.0]
GROUPS = [0, 0, 0, 1, 1, 1]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"beta": 0.3, "gamma": 0.8, "kl_estimator": "k3"},
    {"group_baseline": True, "beta": 0.2, "kl_in": "loss", "kl_estimator": "k2", "epsilon_high": 0.28},
    {"group_baseline": True, "beta": 0.0, "epsilon": 0.05},
    {"group_baseline": True, "beta": 0.1},
]


def drawn(seed: int) -> Tensor:
    return torch.randn(sum(LEARNED), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.4


OLD, REFERENCE, NEW, SAMPLED = (drawn(seed) for seed in range(1, 5))
STARTS = [sum(LEARNED[:i]) for i in range(6)]


def estimate(new: float, reference: float, estimator: str) -> float:
    d = reference - new
    return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[estimator]


def by_hand(o: dict[str, Any]) -> tuple[list[float], list[float]]:
    """(normalised advantage of every token, what they were before)."""
    beta, gamma = o.get("beta", 0.01), o.get("gamma", 1.0)
    plain: list[float] = []
    for i, n in enumerate(LEARNED):
        others = [SCORES[j] for j in range(6) if GROUPS[j] == GROUPS[i] and not math.isnan(SCORES[j])]
        score = SCORES[i] - (statistics.fmean(others) if o.get("group_baseline") else 0.0)
        rewards = [0.0] * n
        for t in range(n):
            at = STARTS[i] + t
            if o.get("kl_in") != "loss":
                rewards[t] = -beta * estimate(
                    float(OLD[at]), float(REFERENCE[at]), o.get("kl_estimator", "k1")
                )
            rewards[t] += score if t == n - 1 else 0.0
        plain += [sum(gamma ** (k - t) * rewards[k] for k in range(t, n)) for t in range(n)]
    mean, spread = statistics.fmean(plain), statistics.variance(plain)
    return [(a - mean) / math.sqrt(spread + 1e-8) for a in plain], plain


def rolled(
    made: ReinforcePlusPlus, ranks: tuple[list[int], ...] = (list(range(6)),)
) -> list[tuple[Batch, Any]]:
    """What each rank, with the answers of these places in one micro-batch, makes of the rollout."""
    scores = torch.tensor(SCORES, dtype=torch.float64)
    advantages, _ = made.compute_advantages(scores, torch.tensor(GROUPS), torch.ones(6, dtype=torch.bool))
    shared: dict[int, dict[int, list[float]]] = {}
    for _ in range(3):  # as many as there are sums that follow from sums
        found = []
        for rank, places in enumerate(ranks):
            own = [t for i in places for t in range(STARTS[i], STARTS[i] + LEARNED[i])]
            answers: list[Answer | None] = [
                Answer(
                    i,
                    (5, 6),
                    tuple(range(20, 20 + LENGTHS[i])),
                    SAMPLED[STARTS[i] :][: LENGTHS[i]],
                    float(advantages[i]),
                    i != 4,
                    i != 4,
                )
                for i in places
            ]
            batch = answer_batch([*answers, None], 0, torch.float64)
            for field in made.precomputed_fields():
                batch = with_tokens(batch, field.name, (OLD if field.name == "old" else REFERENCE)[own])
            ((batch,),), stats = made.finalize_rollout([[batch]], alone(Rank(rank, shared)))
            found.append((batch, stats))
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_advantages_are_normalised_over_the_tokens_of_all_ranks(options: dict[str, Any]) -> None:
    expected, plain = by_hand(options)
    for ranks in ((list(range(6)),), ([0, 3, 5], [4, 1, 2]), ([5], [4], [3, 2, 1, 0])):
        for places, (batch, told) in zip(ranks, rolled(ReinforcePlusPlus(**options), ranks), strict=True):
            own = [t for i in places for t in range(STARTS[i], STARTS[i] + LEARNED[i])]
            assert batch.at_labels("advantage").tolist() == pytest.approx(
                [expected[t] for t in own], abs=1e-10
            )
            assert told["advantage"] == pytest.approx(statistics.fmean(plain), abs=1e-12)
            assert told["advantage_std"] == pytest.approx(statistics.pstdev(plain), abs=1e-12)
            in_reward = options.get("beta", 0.01) > 0 and options.get("kl_in") != "loss"
            assert ("kl_answer" in told) == in_reward
            if in_reward and options.get("kl_estimator", "k1") == "k1":
                assert told["kl_answer"] == pytest.approx(float((OLD - REFERENCE).sum()) / 4, abs=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_loss_weight_gradient_and_metrics(options: dict[str, Any]) -> None:
    made = ReinforcePlusPlus(**options, num_iterations=2)
    ((batch, _),) = rolled(made)
    advantages, _ = by_hand(options)
    low = options.get("epsilon", 0.2)
    high, beta = options.get("epsilon_high", low), options.get("beta", 0.01)
    total, names = 0.0, ("kl", "ratio", "clip_low", "clip_high", "sampling_gap")
    seen: dict[str, list[float]] = {name: [] for name in names}
    for t, a in enumerate(advantages):
        ratio = math.exp(float(NEW[t] - OLD[t]))
        kl = estimate(float(NEW[t]), float(REFERENCE[t]), options.get("kl_estimator", "k1"))
        total += max(-ratio * a, -min(max(ratio, 1 - low), 1 + high) * a)
        total += beta * kl if options.get("kl_in") == "loss" else 0.0
        values = (
            kl,
            ratio,
            ratio < 1 - low and a < 0,
            ratio > 1 + high and a > 0,
            abs(float(OLD[t] - SAMPLED[t])),
        )
        for name, value in zip(names, values, strict=True):
            seen[name].append(float(value))
    assert any(seen["clip_low"]) and any(seen["clip_high"]), "the test needs tokens on both sides"
    new, entropy = NEW.clone().requires_grad_(), drawn(7)
    outputs = {Output.LOGPROBS.value: new, Output.ENTROPY.value: entropy}
    loss = made.losses(Role.POLICY, outputs, batch)["policy"]
    assert (
        float(loss.detach()) == pytest.approx(total, abs=1e-10) and int(made.weights(batch)["policy"]) == 13
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None and float(new.grad.abs().sum()) > 0
    sums = made.metrics(Role.POLICY, outputs, batch)
    assert set(sums) == set(made.train_metrics)
    told = made.summary({name.rpartition("/")[0]: float(value) / 13 for name, value in sums.items()})
    expected = {name: statistics.fmean(values) for name, values in seen.items()} | {
        "entropy": float(entropy.mean())
    }
    if not beta:
        del expected["kl"]
    assert told == pytest.approx(expected, abs=1e-10)


def test_what_it_asks_before_a_step_and_fillers() -> None:
    def asked(**options: Any) -> list[str]:
        return [field.name for field in ReinforcePlusPlus(**options).precomputed_fields()]

    assert asked() == ["old", "reference"] and asked(beta=0.0) == []
    assert asked(kl_in="loss", kl_estimator="k2") == ["reference"]
    assert asked(beta=0.0, updates_per_pass=2) == ["old"]
    assert ReinforcePlusPlus(beta=0.0).frozen == () and ReinforcePlusPlus().frozen == (Role.REFERENCE,)
    made = ReinforcePlusPlus(beta=0.0)
    filler = answer_batch([None, None], 0, torch.float64)
    ((batch,),), told = made.finalize_rollout([[filler]], alone())
    none = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss = made.losses(Role.POLICY, {Output.LOGPROBS.value: none, Output.ENTROPY.value: none}, batch)[
        "policy"
    ]
    assert float(loss.detach()) == 0.0 and loss.requires_grad and set(told.values()) == {0.0}
