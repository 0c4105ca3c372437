"""DPO: every loss, its gradient and every statistic against formulas of their own in plain Python, exact
under any split of the pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pair_batches import pair_batch
from torch import Tensor

from paceline.algorithms.preference.dpo import DPO
from paceline.algorithms.preference.pair_policy import REFERENCE
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role

BETA = 0.3


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def smoothed(gap: float, epsilon: float) -> float:
    return -(1 - epsilon) * log_sigmoid(BETA * gap) - epsilon * log_sigmoid(-BETA * gap)


def debiased(gap: float, epsilon: float) -> float:
    return (-(1 - epsilon) * log_sigmoid(BETA * gap) + epsilon * log_sigmoid(-BETA * gap)) / (1 - 2 * epsilon)


FORMULAS = {
    "sigmoid": smoothed,
    "robust": debiased,
    "hinge": lambda gap, _: max(0.0, 1 - BETA * gap),
    "ipo": lambda gap, _: (gap - 1 / (2 * BETA)) ** 2,
}


def batch_of(pairs: int, seed: int, fillers: int = 1) -> tuple[Batch, Tensor]:
    """Pairs of answers of 1 to 6 learnt tokens with a reference, then fillers without labels; and random
    log-probabilities [L].
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = [*torch.randint(3, 9, (2 * pairs,), generator=generator).tolist(), *[2] * (2 * fillers)]
    ids = [*range(2 * pairs), *[-1] * (2 * fillers)]
    batch = pair_batch(lengths, ids, [0.0] * len(ids))
    reference = -20 * torch.rand(len(ids), generator=generator, dtype=torch.float64)
    labelled = int((batch.labels != IGNORE_INDEX).sum())
    logprobs = (-9 * torch.rand(labelled, generator=generator, dtype=torch.float64)).requires_grad_()
    return replace(batch, extras={**batch.extras, REFERENCE: reference}), logprobs


def answers(batch: Batch, logprobs: Tensor) -> list[list[float]]:
    """The log-probabilities of each real document."""
    found, values = [], iter(logprobs.tolist())
    for d, number in enumerate(batch.document_ids.tolist()):
        labels = batch.labels[0, batch.cu_seqlens[d] : batch.cu_seqlens[d + 1]]
        own = [next(values) for label in labels.tolist() if label != IGNORE_INDEX]
        if number >= 0:
            found.append(own)
    return found


def expected(options: dict[str, Any], batch: Batch, logprobs: Tensor) -> dict[str, float]:
    """Sums over the pairs of the loss (and its SFT part) and of every statistic, from the definitions."""
    spoken, reference = answers(batch, logprobs), batch.extras[REFERENCE].tolist()
    free, by_length = options.get("reference_free", False), options.get("length_normalized", False)
    sums = dict.fromkeys(
        (
            "pairs",
            "sft",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
        ),
        0.0,
    )
    for i in range(0, len(spoken), 2):
        ratios = [sum(spoken[d]) - (0.0 if free else reference[d]) for d in (i, i + 1)]
        gap = (
            ratios[0] / len(spoken[i]) - ratios[1] / len(spoken[i + 1])
            if by_length
            else ratios[0] - ratios[1]
        )
        sums["pairs"] += FORMULAS[options.get("loss_type", "sigmoid")](
            gap, options.get("label_smoothing", 0.0)
        )
        sums["sft"] -= options.get("rpo_alpha", 0.0) * sum(spoken[i])
        sums["rewards/chosen"] += BETA * ratios[0]
        sums["rewards/rejected"] += BETA * ratios[1]
        sums["rewards/accuracies"] += ratios[0] > ratios[1]
        sums["rewards/margins"] += BETA * (ratios[0] - ratios[1])
        sums["logps/chosen"] += sum(spoken[i])
        sums["logps/rejected"] += sum(spoken[i + 1])
    return sums


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.2},
        {"loss_type": "robust", "label_smoothing": 0.2},
        {"loss_type": "hinge"},
        {"loss_type": "ipo"},
        {"loss_type": "ipo", "length_normalized": True},
        {"length_normalized": True},
        {"reference_free": True},
        {"loss_type": "hinge", "rpo_alpha": 0.7},
        {"length_normalized": True, "label_smoothing": 0.1, "rpo_alpha": 0.2},
    ],
    ids=lambda options: ", ".join(map(str, options.items())) or "defaults",
)
def test_losses_gradients_and_statistics_equal_their_formulas(options: dict[str, Any]) -> None:
    algorithm = DPO(beta=BETA, **options)
    batch, logprobs = batch_of(9, seed=3)
    outputs = {Output.LOGPROBS.value: logprobs}
    right = expected(options, batch, logprobs)
    losses = algorithm.losses(Role.POLICY, outputs, batch)
    assert (
        set(losses)
        == {"pairs", *(["sft"] if "rpo_alpha" in options else [])}
        == set(algorithm.weights(batch))
    )
    for name, value in losses.items():
        assert float(value.detach()) == pytest.approx(right[name], abs=1e-10)
    weights = {name: int(value) for name, value in algorithm.weights(batch).items()}
    assert weights["pairs"] == 9
    assert weights.get("sft") in (None, sum(map(len, answers(batch, logprobs)[::2])))
    metrics = {name: float(v) for name, v in algorithm.metrics(Role.POLICY, outputs, batch).items()}
    assert set(metrics) == {f"{name}/pairs" for name in right if "/" in name} == set(algorithm.train_metrics)
    for name, value in metrics.items():
        assert value == pytest.approx(right[name.removesuffix("/pairs")], abs=1e-10)
    sum(losses.values()).backward()
    for place in range(0, logprobs.numel(), 5):  # the slope by a difference of the formulas
        moved = []
        for sign in (1, -1):
            shifted = logprobs.detach().clone()
            shifted[place] += sign * 1e-6
            other = expected(options, batch, shifted)
            moved.append(other["pairs"] + other["sft"])
        assert float(logprobs.grad[place]) == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-6)


def test_a_cut_of_the_pairs_changes_no_sum_and_fillers_weigh_nothing() -> None:
    algorithm = DPO(beta=BETA, rpo_alpha=0.5)
    whole, logprobs = batch_of(9, seed=5, fillers=2)
    logprobs = logprobs.detach()
    bounds = whole.cu_seqlens.tolist()
    labelled = (whole.labels != IGNORE_INDEX).flatten().tolist()
    sums: dict[str, float] = {}
    for first, last in ((0, 4), (4, 14), (14, 22)):  # documents; the last piece ends in fillers
        start, end = bounds[first], bounds[last]
        part = replace(
            whole,
            labels=whole.labels[:, start:end],
            cu_seqlens=whole.cu_seqlens[first : last + 1] - start,
            document_ids=whole.document_ids[first:last],
            extras={name: value[first:last] for name, value in whole.extras.items()},
        )
        own = logprobs[sum(labelled[:start]) : sum(labelled[:end])]
        found = {**algorithm.losses(Role.POLICY, {"logprobs": own}, part)}
        found |= {f"W {name}": value for name, value in algorithm.weights(part).items()}
        found |= algorithm.metrics(Role.POLICY, {"logprobs": own}, part)
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    assert sums["W pairs"] == 9
    for name, value in algorithm.losses(Role.POLICY, {"logprobs": logprobs}, whole).items():
        assert sums[name] == pytest.approx(float(value), abs=1e-10)
    for name, value in algorithm.metrics(Role.POLICY, {"logprobs": logprobs}, whole).items():
        assert sums[name] == pytest.approx(float(value), abs=1e-10)


def test_who_is_asked_for_the_reference() -> None:
    assert (DPO().reference_roles, DPO().frozen) == ((Role.REFERENCE,), (Role.REFERENCE,))
    assert (DPO(reference="adapter").reference_roles, DPO(reference="adapter").frozen) == (
        (Role.REFERENCE,),
        (),
    )
    assert (DPO(reference="cached").reference_roles, DPO(reference="cached").frozen) == ((), ())
    assert (DPO(reference_free=True).reference_roles, DPO(reference_free=True).frozen) == ((), ())
    batch, logprobs = batch_of(4, seed=1)
    bare = replace(batch, extras={})
    with pytest.raises(AssertionError, match="missing"):
        DPO().losses(Role.POLICY, {"logprobs": logprobs}, bare)
    informed = DPO().attach_outputs(Role.REFERENCE, {"logprobs": logprobs.detach()}, bare)
    assert float(
        DPO().losses(Role.POLICY, {"logprobs": logprobs.detach()}, informed)["pairs"]
    ) == pytest.approx(4 * math.log(2))


def test_a_policy_far_from_its_reference_gives_numbers() -> None:
    """Log-ratios of tens of thousands: no overflow in any loss or slope."""
    batch, logprobs = batch_of(3, seed=2)
    for loss in FORMULAS:
        scaled = (logprobs.detach() * 1e4).requires_grad_()
        value = DPO(beta=BETA, loss_type=loss).losses(Role.POLICY, {"logprobs": scaled}, batch)["pairs"]
        value.backward()
        assert bool(value.isfinite()) and bool(scaled.grad.isfinite().all())
