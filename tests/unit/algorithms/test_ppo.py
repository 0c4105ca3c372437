"""PPO's rewards, advantages, losses and everything it reports, against loops over answers and tokens in
float64; whitening over ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from rollout_batches import Rank, alone
from torch import Tensor

from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.ppo import PPO
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

LENGTHS = [3, 1, 4, 0, 2, 5]  # tokens of each answer; one is empty, the one of two tokens is left out
LEARNED = [3, 1, 4, 0, 0, 5]
SCORES = [1.3, -0.7, 0.4, 2.0, math.nan, 3.0]
ENDED = [True, False, True, True, True, False]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"kl_estimator": "k3", "gamma": 0.9, "lam": 0.8, "whiten_advantages": False, "missing_eos_penalty": 0.5},
    {"kl_in": "loss", "kl_estimator": "k2", "kl_coef": 0.3, "cliprange_reward": 1.0, "cliprange_value": None},
    {"whiten_rewards": True, "adap_kl_ctrl": True, "target": 0.01, "horizon": 20, "cliprange": 0.1},
    {"kl_coef": 0.0, "lam": 1.0, "vf_coef": 1.0},
]


def drawn(seed: int, scale: float = 0.4) -> Tensor:
    return (
        torch.randn(sum(LEARNED), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    )


OLD, REFERENCE, VALUES, SAMPLED, NEW, NOW = (drawn(seed) for seed in range(1, 7))


def micro_batches(ppo: PPO, cut: Sequence[range] = (range(3), range(3, 6))) -> list[list[Batch]]:
    """The answers in micro-batches, each with a filler at its end, as they are before they are credited."""
    credits, spread = ppo.compute_advantages(
        torch.tensor(SCORES, dtype=torch.float64), torch.arange(6), torch.tensor(ENDED)
    )
    assert spread.tolist() == [0.0] * 6
    ends = [sum(LEARNED[:i]) for i in range(7)]
    made = []
    for part in cut:
        rows = [
            Answer(
                i,
                (5, 6, 7)[: 1 + i % 3],
                tuple(range(20, 20 + LENGTHS[i])),
                SAMPLED[ends[i] : ends[i] + LENGTHS[i]],
                float(credits[i]),
                i != 4,
                i != 4,
            )
            for i in part
        ]
        batch, span = answer_batch([*rows, None], 0, torch.float64), slice(ends[part[0]], ends[part[-1] + 1])
        for asked in ppo.precomputed_fields():
            batch = with_tokens(
                batch, asked.name, {"old": OLD, "reference": REFERENCE, "values": VALUES}[asked.name][span]
            )
        made.append(batch)
    return [[batch] for batch in made]


def kl_of(p: float, q: float, estimator: str) -> float:
    d = q - p
    return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[estimator]


def white(values: list[float], keep_mean: bool = False) -> list[float]:
    mean, spread = statistics.fmean(values), math.sqrt(statistics.variance(values) + 1e-8)
    return [(v - mean) / spread + (mean if keep_mean else 0.0) for v in values]


def by_hand(o: dict[str, Any]) -> dict[str, Any]:
    """Advantages and returns of every token, and what is told of a rollout."""
    beta, estimator = o.get("kl_coef", 0.05), o.get("kl_estimator", "k1")
    old, reference, values = OLD.tolist(), REFERENCE.tolist(), VALUES.tolist()
    kl = [kl_of(p, q, estimator) for p, q in zip(old, reference, strict=True)]
    ends = [sum(LEARNED[:i]) for i in range(7)]
    spans = [range(ends[i], ends[i + 1]) for i in range(6)]
    scores = []
    for score, ended in zip(SCORES, ENDED, strict=True):
        bound = o.get("cliprange_reward", math.inf)
        scores.append(min(bound, max(-bound, score)) - (0.0 if ended else o.get("missing_eos_penalty", 0.0)))
    rewards = [0.0 if o.get("kl_in") == "loss" else -beta * k for k in kl]
    for span, score in zip(spans, scores, strict=True):
        if span:
            rewards[span[-1]] += score
    if o.get("whiten_rewards"):
        rewards = white(rewards, keep_mean=True)
    gamma, lam = o.get("gamma", 1.0), o.get("lam", 0.95)
    advantages = []
    for span in spans:
        errors = {t: rewards[t] + (gamma * values[t + 1] if t + 1 in span else 0.0) - values[t] for t in span}
        advantages += [sum((gamma * lam) ** (k - t) * errors[k] for k in span if k >= t) for t in span]
    returns = [a + v for a, v in zip(advantages, values, strict=True)]
    answers = [i for i in range(6) if LEARNED[i]]
    told = {
        "score": statistics.fmean(scores[i] for i in answers),
        "advantage": statistics.fmean(advantages),
        "advantage_std": statistics.pstdev(advantages),
        "returns": statistics.fmean(returns),
        "values": statistics.fmean(values),
    }
    if beta:
        told |= {"kl_answer": sum(kl) / len(answers), "kl_coef": beta}
    white_advantages = white(advantages) if o.get("whiten_advantages", True) else advantages
    return {"advantage": white_advantages, "return": returns, "told": told}


def of_tokens(batches: list[list[Batch]], name: str) -> list[float]:
    return [x for row in batches for batch in row for x in batch.at_labels(name).tolist()]


@pytest.mark.parametrize("options", OPTIONS)
def test_advantages_returns_and_what_is_told_of_a_rollout(options: dict[str, Any]) -> None:
    ppo, expected = PPO(**options), by_hand(options)
    made, told = ppo.finalize_rollout(micro_batches(ppo), alone())
    assert {*ppo.fields()} == {*made[0][0].tokens}
    for name in ("advantage", "return"):
        assert of_tokens(made, name) == pytest.approx(expected[name], abs=1e-10), name
    assert told == pytest.approx(expected["told"], abs=1e-10)
    coefficient = options.get("kl_coef", 0.05)
    if options.get("adap_kl_ctrl"):  # the next rollout's: KL / target - 1, clipped, times answers / horizon
        error = min(0.2, max(-0.2, expected["told"]["kl_answer"] / options["target"] - 1))
        assert ppo.controller.value == pytest.approx(
            coefficient * (1 + error * 4 / options["horizon"]), abs=1e-12
        )
        coefficient = ppo.controller.value
        assert ppo.kl_coef == 0.05
    _, again = ppo.finalize_rollout(micro_batches(ppo), alone())
    assert again.get("kl_coef", 0.0) == coefficient


@pytest.mark.parametrize("options", OPTIONS)
def test_ranks_find_what_one_process_finds(options: dict[str, Any]) -> None:
    expected, shared = by_hand(options), {}  # type: ignore[var-annotated]
    for _ in range(4):  # as many as there are sums that follow from sums
        found, told = [], []
        for rank, part in enumerate((range(4), range(4, 6))):
            ppo = PPO(**options)
            made, said = ppo.finalize_rollout(micro_batches(ppo, [part]), alone(Rank(rank, shared)))
            found += of_tokens(made, "advantage")
            told.append(said)
    assert found == pytest.approx(expected["advantage"], abs=1e-10)
    assert told[0] == told[1] == pytest.approx(expected["told"], abs=1e-10)


@pytest.mark.parametrize("options", OPTIONS)
def test_losses_gradients_and_metrics_of_a_step(options: dict[str, Any]) -> None:
    ppo = PPO(**options)
    made, _ = ppo.finalize_rollout(micro_batches(ppo, [range(6)]), alone())
    batch, expected = made[0][0], by_hand(options)
    new, now = NEW.clone().requires_grad_(), NOW.clone().requires_grad_()
    entropy = drawn(9)
    outputs = {Output.LOGPROBS.value: new, Output.ENTROPY.value: entropy, Output.VALUES.value: now}
    seen: dict[str, list[float]] = {
        n: []
        for n in (
            "policy",
            "value_loss",
            "kl",
            "ratio",
            "clip_low",
            "clip_high",
            "approx_kl",
            "value_clip",
            "sampling_gap",
        )
    }
    clip, near = options.get("cliprange", 0.2), options.get("cliprange_value", 0.2)
    for t in range(sum(LEARNED)):
        a, target, ratio = expected["advantage"][t], expected["return"][t], math.exp(float(NEW[t] - OLD[t]))
        kl = kl_of(float(NEW[t]), float(REFERENCE[t]), options.get("kl_estimator", "k1"))
        loss = max(-a * ratio, -a * min(max(ratio, 1 - clip), 1 + clip))  # as TRL writes it
        v, before = float(NOW[t]), float(VALUES[t])
        bounded = v if near is None else min(max(v, before - near), before + near)
        values = (
            loss + (options["kl_coef"] * kl if options.get("kl_in") == "loss" else 0.0),
            0.5 * max((v - target) ** 2, (bounded - target) ** 2),
            kl,
            ratio,
            ratio < 1 - clip and a < 0,
            ratio > 1 + clip and a > 0,
            0.5 * float(NEW[t] - OLD[t]) ** 2,
            (bounded - target) ** 2 > (v - target) ** 2,
            abs(float(OLD[t] - SAMPLED[t])),
        )
        for name, value in zip(seen, values, strict=True):
            seen[name].append(float(value))
    means = {name: statistics.fmean(values) for name, values in seen.items()}
    weights = ppo.weights(batch)
    assert {int(w) for w in weights.values()} == {sum(LEARNED)} and all(
        w.dtype == torch.int64 for w in weights.values()
    )
    policy, value = (ppo.losses(role, outputs, batch) for role in (Role.POLICY, Role.VALUE))
    assert float(policy["policy"].detach()) / 13 == pytest.approx(means["policy"], abs=1e-10)
    vf_coef = options.get("vf_coef", 0.1)
    assert float(value["value"].detach()) / 13 == pytest.approx(vf_coef * means["value_loss"], abs=1e-10)
    (policy["policy"] + value["value"]).backward()  # type: ignore[no-untyped-call]
    for t in range(13):  # the gradient of the value's loss, where it is clipped none
        v, before, target = float(NOW[t]), float(VALUES[t]), expected["return"][t]
        free = near is None or abs(v - before) <= near or not seen["value_clip"][t]
        assert now.grad is not None
        assert float(now.grad[t]) == pytest.approx(vf_coef * (v - target) if free else 0.0, abs=1e-10)
    sums = {**ppo.metrics(Role.POLICY, outputs, batch), **ppo.metrics(Role.VALUE, outputs, batch)}
    assert set(sums) == set(ppo.train_metrics)
    told = ppo.summary({name.rpartition("/")[0]: float(total) / 13 for name, total in sums.items()})
    errors = [r - float(v) for r, v in zip(expected["return"], NOW, strict=True)]
    explained = 1 - statistics.pvariance(errors) / statistics.pvariance(expected["return"])
    means |= {"entropy": float(entropy.mean()), "explained_variance": explained}
    assert ("kl" in told) == bool(options.get("kl_coef", 0.05))
    for name, number in told.items():
        assert number == pytest.approx(means[name], abs=1e-10), name


def test_a_rollout_of_fillers_and_of_answers_left_out_has_nothing_in_it() -> None:
    ppo = PPO(whiten_rewards=True, adap_kl_ctrl=True)
    batch = answer_batch(
        [None, Answer(3, (4, 5), (6, 7), torch.zeros(2), 0.0, False, False)], 0, torch.float64
    )
    for asked in ppo.precomputed_fields():
        batch = with_tokens(batch, asked.name, torch.zeros(0, dtype=torch.float64))
    made, told = ppo.finalize_rollout([[batch]], alone())
    assert made[0][0].at_labels("advantage").shape == (0,) and set(told.values()) == {0.0, 0.05}
    none = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    outputs = {Output.LOGPROBS.value: none, Output.ENTROPY.value: none, Output.VALUES.value: none}
    assert [float(x) for x in ppo.weights(made[0][0]).values()] == [0, 0]
    for role in ppo.trains:
        (loss,) = ppo.losses(role, outputs, made[0][0]).values()
        assert float(loss.detach()) == 0.0 and loss.requires_grad
    zero = ppo.summary({name.rpartition("/")[0]: 0.0 for name in ppo.train_metrics})
    assert set(zero.values()) == {0.0}


def test_what_a_checkpoint_holds_goes_on() -> None:
    ppo = PPO(adap_kl_ctrl=True, target=0.01, horizon=10)
    ppo.finalize_rollout(micro_batches(ppo), alone())
    other = PPO(adap_kl_ctrl=True, target=0.01, horizon=10)
    other.load_state(ppo.state())
    assert (other.kl_coef, other.controller.value) == (ppo.kl_coef, ppo.controller.value)
    # a rollout goes on with its own, the next one takes what it has led to
    assert ppo.kl_coef != ppo.controller.value
    fixed = PPO(kl_coef=0.2)
    fixed.load_state(fixed.state())
    assert fixed.kl_coef == 0.2


def test_the_models_that_are_asked_only() -> None:
    assert PPO().frozen == (Role.REFERENCE,) and PPO(reference="adapter").frozen == ()
    assert PPO(reward_model=True).frozen == (Role.REFERENCE, Role.REWARD)
    assert PPO(kl_coef=0.0, reward_model=True).frozen == (Role.REWARD,)
    assert [a.name for a in PPO(kl_coef=0.0).precomputed_fields()] == ["old", "values"]
    assert PPO(num_ppo_epochs=3, updates_per_pass=2).updates_per_rollout == 6
