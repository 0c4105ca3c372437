"""RLOO's advantages, loss, weight and everything it reports, against loops over answers and tokens in
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

from paceline.algorithms.on_policy.advantages import leave_one_out
from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.rloo import RLOO
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

# three prompts of three answers: tokens of each, scores; the fifth was not judged, the last two neither, the
# second was cut off and masked
LENGTHS = [3, 0, 4, 2, 0, 1, 5, 0, 0]
SCORES = [1.0, 0.3, -0.4, 2.0, math.nan, 0.5, 0.7, math.nan, math.nan]
GROUPS = [i // 3 for i in range(9)]
JUDGED = [not math.isnan(s) for s in SCORES]
OPTIONS: list[dict[str, Any]] = [
    {"beta": 0.0},
    {"beta": 0.3},
    {"beta": 0.3, "normalize_advantages": True, "reward_clip_range": [-0.2, 1.5]},
    {"beta": 0.1, "epsilon": 0.1, "epsilon_high": 0.4},
]


def drawn(seed: int) -> Tensor:
    return torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.3


OLD, REFERENCE, NEW, SAMPLED = (drawn(seed) for seed in range(1, 5))
STARTS = [sum(LENGTHS[:i]) for i in range(9)]


def of(values: Tensor, i: int) -> list[float]:
    found: list[float] = values[STARTS[i] : STARTS[i] + LENGTHS[i]].tolist()
    return found


def rolled(
    rloo: RLOO, ranks: tuple[list[int], ...] = (list(range(9)),)
) -> list[tuple[list[list[Batch]], Any]]:
    """What each rank, with the answers of these places in micro-batches of three, makes of the rollout."""
    groups, scores = torch.tensor(GROUPS), torch.tensor(SCORES, dtype=torch.float64)
    advantages, _ = rloo.compute_advantages(scores, groups, torch.ones(9, dtype=torch.bool))
    shared: dict[int, dict[int, list[float]]] = {}
    for _ in range(2):
        found = []
        for rank, places in enumerate(ranks):
            cut = [places[i : i + 3] for i in range(0, len(places), 3)]
            batches = []
            for row in cut:
                answers: list[Answer | None] = [
                    Answer(
                        GROUPS[i],
                        (5, 6),
                        tuple(range(20, 20 + LENGTHS[i])),
                        torch.tensor(of(SAMPLED, i), dtype=torch.float64),
                        float(advantages[i]),
                        JUDGED[i],
                        LENGTHS[i] > 0,
                    )
                    for i in row
                ]
                made = answer_batch(answers, 0, torch.float64)
                for name, values in (("old", OLD), ("reference", REFERENCE)):
                    own = torch.tensor([x for i in row for x in of(values, i)], dtype=torch.float64)
                    made = with_tokens(made, name, own)
                batches.append(made)
            known = {"advantages": advantages, "groups": groups, "is_scored": torch.tensor(JUDGED)}
            whole = alone(Rank(rank, shared), places=[torch.tensor(row) for row in cut], **known)
            found.append(rloo.finalize_rollout([batches], whole))
    return found


def by_hand(o: dict[str, Any]) -> list[float]:
    """The advantage of each answer: its reward less the mean of the other judged ones of its prompt."""
    low, high = o.get("reward_clip_range", (-math.inf, math.inf))
    rewards = []
    for i in range(9):
        kl = sum(a - b for a, b in zip(of(OLD, i), of(REFERENCE, i), strict=True))
        rewards.append(min(max(SCORES[i], low), high) - o["beta"] * kl)
    found: list[float | None] = []
    for i in range(9):
        others = [rewards[j] for j in range(9) if j != i and GROUPS[j] == GROUPS[i] and JUDGED[j]]
        found.append(rewards[i] - statistics.fmean(others) if JUDGED[i] and others else None)
    if o.get("normalize_advantages"):
        own = [a for a in found if a is not None]
        found = [
            None if a is None else (a - statistics.fmean(own)) / (statistics.stdev(own) + 1e-4) for a in found
        ]
    return [0.0 if a is None else a for a in found]


@pytest.mark.parametrize("options", OPTIONS)
def test_advantages_are_of_the_other_answers_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    expected = by_hand(options)
    for ranks in ((list(range(9)),), ([0, 1, 2, 6, 7, 8], [3, 4, 5]), ([8, 1, 3], [0, 5, 7], [2, 4, 6])):
        told = rolled(RLOO(**options), ranks)
        for places, (((*batches,),), stats) in zip(ranks, told, strict=True):
            found = [x for batch in batches for x in batch.at_labels("advantage").tolist()]
            assert found == pytest.approx([expected[i] for i in places for _ in range(LENGTHS[i])], abs=1e-12)
            assert stats == pytest.approx(told[0][1], abs=1e-12) and set(stats) == (
                {"kl", "kl_answer"} if options["beta"] else set()
            )
        if options["beta"]:
            assert stats["kl"] == pytest.approx(float((OLD - REFERENCE).mean()), abs=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_loss_weight_gradient_and_metrics(options: dict[str, Any]) -> None:
    rloo = RLOO(**{**options, "num_iterations": 2})
    ((((*batches,),), _),) = rolled(rloo)
    advantages, low, high = by_hand(options), options.get("epsilon", 0.2), options.get("epsilon_high", 0.2)
    total = 0.0
    seen: dict[str, list[float]] = {name: [] for name in ("ratio", "clip_low", "clip_high")}
    slopes: list[float] = []
    for i in range(9):
        if not LENGTHS[i]:
            continue
        ratio = math.exp(sum(of(NEW, i)) - sum(of(OLD, i)))  # of the whole answer
        a = advantages[i]
        plain, clipped = ratio * a, min(max(ratio, 1 - low), 1 + high) * a
        total -= min(plain, clipped)
        slopes += [-plain if plain <= clipped else 0.0] * LENGTHS[i]
        for name, value in zip(
            seen, (ratio, ratio < 1 - low and a < 0, ratio > 1 + high and a > 0), strict=True
        ):
            seen[name].append(float(value))
    assert 0 < sum(slope == 0.0 for slope in slopes) < len(slopes), (
        "the test needs answers that are clipped and others"
    )
    told, found, weight, at = dict.fromkeys(rloo.train_metrics, 0.0), 0.0, 0, 0
    entropy = drawn(7)
    for batch in batches:
        count = int(batch.num_labels())
        new = NEW[at : at + count].clone().requires_grad_()
        outputs = {Output.LOGPROBS.value: new, Output.ENTROPY.value: entropy[at : at + count]}
        loss = rloo.losses(Role.POLICY, outputs, batch)["policy"]
        loss.backward()  # type: ignore[no-untyped-call]
        assert new.grad is not None and new.grad.tolist() == pytest.approx(slopes[at : at + count], abs=1e-12)
        for name, value in rloo.metrics(Role.POLICY, outputs, batch).items():
            told[name] += float(value)
        found, weight, at = (
            found + float(loss.detach()),
            weight + int(rloo.weights(batch)["policy"]),
            at + count,
        )
    assert found == pytest.approx(total, abs=1e-12) and weight == sum(JUDGED)
    means = rloo.summary({name.rpartition("/")[0]: value / weight for name, value in told.items()})
    expected = {name: statistics.fmean(values) for name, values in seen.items()}
    expected |= {"entropy": float(entropy.mean()), "sampling_gap": float((OLD - SAMPLED).abs().mean())}
    assert means == pytest.approx(expected, abs=1e-12)


def test_the_first_step_on_a_rollout_is_reinforce() -> None:
    """π_old = π: the gradient of each token is minus the answer's advantage, and without a KL nothing is
    asked before the step.
    """
    rloo = RLOO(beta=0.0)
    assert list(rloo.precomputed_fields()) == [] and rloo.frozen == ()
    ((((batch, *_),), _),) = rolled(rloo)
    bare = answer_batch([Answer(0, (5, 6), (20, 21, 22), torch.zeros(3), 1.05, True, True)], 0, torch.float64)
    new = torch.tensor([-0.4, -0.1, -2.0], dtype=torch.float64, requires_grad=True)
    rloo.losses(Role.POLICY, {Output.LOGPROBS.value: new, Output.ENTROPY.value: new.detach()}, bare)[
        "policy"
    ].backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None and new.grad.tolist() == pytest.approx([-1.05] * 3)
    assert [f.name for f in RLOO().precomputed_fields()] == ["old", "reference"]
    assert RLOO().frozen == (Role.REFERENCE,) and RLOO(reference="adapter").frozen == ()
    assert batch.num_rows == 3


def test_equal_scores_and_single_answers_teach_nothing() -> None:
    scores = torch.tensor([0.1, 0.1, 0.1, 7.0, math.nan], dtype=torch.float64)
    found, spread = leave_one_out(scores, torch.tensor([0, 0, 0, 1, 1]))
    assert found.tolist() == [0.0] * 5 and spread.tolist() == [0.0] * 5
    filler = answer_batch([None, None], 0, torch.float64)
    none = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    rloo, outputs = RLOO(), {Output.LOGPROBS.value: none, Output.ENTROPY.value: none}
    loss = rloo.losses(Role.POLICY, outputs, filler)["policy"]
    assert float(loss.detach()) == 0.0 and loss.requires_grad and int(rloo.weights(filler)["policy"]) == 0
    assert set(
        rloo.summary(dict.fromkeys((n.rpartition("/")[0] for n in rloo.train_metrics), 0.0)).values()
    ) == {0.0}
