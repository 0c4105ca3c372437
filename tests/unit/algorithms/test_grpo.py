"""GRPO's loss, its weight and everything it reports, against loops over answers and tokens in float64."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.algorithms.on_policy.base import LabelledTokens, per_token, with_tokens
from paceline.algorithms.on_policy.grpo import GRPO
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

LENGTHS, LONGEST = [3, 1, 4, 0, 2], 6  # tokens of each answer; one is empty, the last is left out
LABELLED = 3 + 1 + 4


def drawn(seed: int, count: int = LABELLED, scale: float = 0.4) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


ADVANTAGES, SAMPLED = [1.3, -0.7, 0.4, 2.0, 9.0], drawn(1)


def batch(**fields: Tensor) -> Batch:
    pieces = list(SAMPLED.split([3, 1, 4])) + [SAMPLED[:0], SAMPLED[:2]]
    answers: list[Answer | None] = [
        Answer(
            10 + i, (5, 6, 7)[: 1 + i % 3], tuple(range(20, 20 + n)), pieces[i], ADVANTAGES[i], i != 4, i != 4
        )
        for i, n in enumerate(LENGTHS)
    ]
    made = answer_batch([*answers, None], 0, torch.float64)
    for name, values in fields.items():
        made = with_tokens(made, name, values)
    return made


def test_an_answer_batch_labels_the_sampled_tokens() -> None:
    made = batch()
    assert made.input_ids[0, :4].tolist() == [5, 20, 21, 22] and made.labels[0, :4].tolist() == [
        20,
        21,
        22,
        IGNORE_INDEX,
    ]
    assert made.position_ids[0].tolist() == [*range(4), *range(3), *range(7), *range(1), *range(4), *range(2)]
    assert made.num_rows == 5 and made.document_ids.tolist() == [10, 11, 12, 13, 14, -1]
    assert made.extras["is_scored"].tolist() == [1, 1, 1, 1, 0, 0] and int(made.num_labels()) == LABELLED
    where = LabelledTokens.of(made)
    assert where.lengths.tolist() == [3, 1, 4, 0, 0, 0] and where.segments.tolist() == [
        0,
        0,
        0,
        1,
        2,
        2,
        2,
        2,
    ]
    torch.testing.assert_close(made.at_labels("sampled"), SAMPLED, rtol=0, atol=0)
    assert made.at_labels("advantage").tolist() == [1.3] * 3 + [-0.7] + [0.4] * 4


OPTIONS: list[dict[str, Any]] = [
    {},
    {"loss_type": "grpo", "beta": 0.3},
    {"loss_type": "dr_grpo", "epsilon_high": 0.28, "beta": 0.1, "kl_estimator": "k2"},
    {
        "importance_sampling_level": "sequence",
        "loss_type": "grpo",
        "beta": 0.2,
        "use_bias_correction_kl": True,
    },
    {"delta": 1.5, "loss_type": "bnpo"},
    {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.2, "use_bias_correction_kl": True},
    {"loss_type": "cispo", "epsilon_high": 1.2, "importance_sampling_level": "sequence"},
    {"rollout_correction": "truncate", "rollout_correction_cap": 1.2},
    {"rollout_correction": "mask", "rollout_correction_level": "sequence", "beta": 0.4},
]


def by_hand(
    new: list[float], old: list[float], reference: list[float], o: dict[str, Any]
) -> dict[str, float]:
    """The loss's sum and its weight, and means over tokens, in plain loops."""
    low, high = 0.2, o.get("epsilon_high", 0.2)
    total, seen, at = 0.0, {n: [] for n in ("kl", "ratio", "clip_low", "clip_high", "sampling_gap")}, 0  # type: ignore[var-annotated]
    for i, n in enumerate(LENGTHS[:4]):
        span = range(at, at + n)
        at += n
        mean = statistics.fmean(new[t] - old[t] for t in span) if n else 0.0
        gap = sum(old[t] - float(SAMPLED[t]) for t in span)
        for t in span:
            ratio = math.exp(mean if o.get("importance_sampling_level") == "sequence" else new[t] - old[t])
            a = ADVANTAGES[i]
            loss = -min(min(ratio, o.get("delta", math.inf)) * a, min(max(ratio, 1 - low), 1 + high) * a)
            under, over = ratio < 1 - low and a < 0, ratio > 1 + high and a > 0
            if o.get("loss_type") == "cispo":
                loss, under, over = -min(ratio, high) * a * new[t], False, ratio > high and a > 0
            if "rollout_correction" in o:
                w = math.exp(
                    gap if o.get("rollout_correction_level") == "sequence" else old[t] - float(SAMPLED[t])
                )
                cap = o.get("rollout_correction_cap", 2.0)
                loss *= min(w, cap) if o["rollout_correction"] == "truncate" else (0.0 if w > cap else w)
            d = reference[t] - new[t]
            kl = d * d / 2 if o.get("kl_estimator") == "k2" else math.exp(d) - 1 - d
            loss += o.get("beta", 0.0) * kl * (ratio if o.get("use_bias_correction_kl") else 1.0)
            total += loss / n if o.get("loss_type") == "grpo" else loss
            values = (kl if o.get("beta") else 0.0, ratio, under, over, abs(old[t] - float(SAMPLED[t])))
            for name, value in zip(seen, values, strict=True):
                seen[name].append(float(value))
    weight = {"grpo": 4, "dr_grpo": 4 * LONGEST}.get(o.get("loss_type", "dapo"), LABELLED)
    return {
        "sum": total,
        "weight": weight,
        **{name: statistics.fmean(values) for name, values in seen.items()},
    }


@pytest.mark.parametrize("options", OPTIONS)
def test_loss_weight_and_metrics(options: dict[str, Any]) -> None:
    grpo = GRPO(**{**options, "num_iterations": 2, "max_completion_length": LONGEST})
    new, old, reference, entropy = drawn(2).requires_grad_(), drawn(3), drawn(4), drawn(5)
    fields = {"old": old} | ({"reference": reference} if options.get("beta") else {})
    assert {a.name for a in grpo.precomputed_fields()} == set(fields)
    made = batch(**fields)
    outputs = {Output.LOGPROBS.value: new, Output.ENTROPY.value: entropy}
    expected = by_hand(new.tolist(), old.tolist(), reference.tolist(), options)
    (weight,) = grpo.weights(made).values()
    (loss,) = grpo.losses(Role.POLICY, outputs, made).values()
    assert weight.dtype == torch.int64 and int(weight) == expected["weight"]
    assert float(loss.detach()) == pytest.approx(expected["sum"], abs=1e-10)
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None and new.grad.abs().sum() > 0
    sums = grpo.metrics(Role.POLICY, outputs, made)
    assert set(sums) == set(grpo.train_metrics)
    told = grpo.summary({name.rpartition("/")[0]: float(value) / int(weight) for name, value in sums.items()})
    expected["entropy"] = float(entropy.mean())
    assert ("kl" in told) == bool(options.get("beta"))
    for name, value in told.items():
        assert value == pytest.approx(expected[name], abs=1e-10), name


def test_the_first_update_of_a_rollout_needs_no_old_policy() -> None:
    grpo = GRPO()
    assert list(grpo.precomputed_fields()) == [] and grpo.frozen == ()
    new, made = drawn(2).requires_grad_(), batch()
    outputs = {Output.LOGPROBS.value: new, Output.ENTROPY.value: drawn(5)}
    loss = grpo.losses(Role.POLICY, outputs, made)["policy"]
    advantages = made.at_labels("advantage")
    assert float(loss.detach()) == pytest.approx(-float(advantages.sum()), abs=1e-12)  # the ratio is 1
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    # and the gradient the policy gradient's
    torch.testing.assert_close(new.grad, -advantages, rtol=0, atol=1e-12)


def test_fillers_alone_and_what_is_left_out_weigh_nothing() -> None:
    grpo = GRPO(beta=0.1, loss_type="grpo")
    filler = answer_batch([None, None], 0, torch.float64)
    none = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    outputs = {Output.LOGPROBS.value: none, Output.ENTROPY.value: none}
    assert int(grpo.weights(filler)["policy"]) == 0
    assert float(grpo.losses(Role.POLICY, outputs, filler)["policy"].detach()) == 0.0
    assert per_token({"tokens": 0.0, "kl": 0.0}) == {"kl": 0.0}
    assert [GRPO(mask_truncated_completions=flag).masks_truncated for flag in (True, False)] == [True, False]
    assert GRPO(beta=0.1).frozen == (Role.REFERENCE,) and GRPO(beta=0.1, reference="adapter").frozen == ()


def test_cispo_learns_of_every_token_by_a_bounded_weight() -> None:
    """d loss / d log π_t = -min(ρ_t, ε_max) · A_t, and nothing through the weight (MiniMax-M1, eq. 4)."""
    grpo = GRPO(loss_type="cispo", epsilon_high=1.1, num_iterations=2)
    new, old = drawn(2).requires_grad_(), drawn(3)
    made = batch(old=old)
    grpo.losses(Role.POLICY, {Output.LOGPROBS.value: new, Output.ENTROPY.value: drawn(5)}, made)[
        "policy"
    ].backward()  # type: ignore[no-untyped-call]
    weight = (new.detach() - old).exp().clamp(max=1.1)
    assert 0 < int((weight == 1.1).sum()) < LABELLED, "the test needs tokens of both sorts"
    assert new.grad is not None
    torch.testing.assert_close(new.grad, -weight * made.at_labels("advantage"), rtol=0, atol=1e-12)
