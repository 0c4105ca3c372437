"""KTO against its formula in plain Python, on random numbers; its KL over a whole window, however that is
cut.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.algorithms.preference.kto import KTO
from paceline.algorithms.preference.pair_policy import REFERENCE
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role

BETA, COUNT = 0.3, 7
LENGTHS = [4, 6, 3, 9, 5, 2, 7]


def batch_of(documents: list[int]) -> Batch:
    """Documents by number, of which all but the first token are learnt; -1 is a filler."""
    lengths = [2 if d < 0 else LENGTHS[d] for d in documents]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    labels = torch.full((1, int(bounds[-1])), IGNORE_INDEX)
    for start, end, document in zip(bounds, bounds[1:], documents, strict=False):
        labels[0, start : end - 1] = 1 if document >= 0 else IGNORE_INDEX
    label = torch.tensor([float(d >= 0 and d % 3 != 1) for d in documents], dtype=torch.float64)
    zeros = torch.zeros_like(labels)
    return Batch(
        zeros,
        labels,
        zeros,
        bounds.to(torch.int32),
        max(lengths),
        torch.tensor(documents),
        1,
        extras={"label": label},
    )


def logprobs(seed: int, documents: list[int]) -> Tensor:
    """[L] of the documents, each its own whatever stands beside it."""
    parts = [
        torch.randn(
            LENGTHS[d] - 1, generator=torch.Generator().manual_seed(100 * seed + d), dtype=torch.float64
        )
        for d in documents
        if d >= 0
    ]
    return torch.cat([*parts, torch.zeros(0, dtype=torch.float64)]).requires_grad_()


def sums(seed: int, document: int) -> float:
    return float(logprobs(seed, [document]).detach().sum())


def informed(algorithm: KTO, documents: list[int], kl: float | None) -> Batch:
    batch = algorithm.attach_outputs(
        Role.REFERENCE, {Output.LOGPROBS.value: logprobs(2, documents).detach()}, batch_of(documents)
    )
    return batch if kl is None else batch.with_numbers({"kl": kl})


def by_hand(z0: float, desirable: float = 1.0, undesirable: float = 1.0) -> list[float]:
    """λ (1 - σ(±β (h - z0))) of each answer, straight from the paper."""
    found = []
    for d in range(COUNT):
        h = sums(1, d) - sums(2, d)
        sign, weight = (1, desirable) if d % 3 != 1 else (-1, undesirable)
        found.append(weight * (1 - 1 / (1 + math.exp(-sign * BETA * (h - z0)))))
    return found


@pytest.mark.parametrize("kl", [0.0, 1.7, -0.9])
@pytest.mark.parametrize(
    "cut", [[list(range(7))], [[0, 1], [2, 3, -1], [4, 5, 6]], [[d] for d in range(7)] + [[-1]]]
)
def test_the_loss_is_its_formula_however_the_window_is_cut(kl: float, cut: list[list[int]]) -> None:
    algorithm = KTO(beta=BETA, desirable_weight=0.8, undesirable_weight=1.4)
    total, weight, gradients = 0.0, 0, {}
    for documents in cut:
        given, batch = logprobs(1, documents), informed(algorithm, documents, kl)
        [loss] = algorithm.losses(Role.POLICY, {Output.LOGPROBS.value: given}, batch).values()
        loss.backward()
        total, weight = total + float(loss.detach()), weight + int(algorithm.weights(batch)["answers"])
        real = [d for d in documents if d >= 0]
        for d, part in zip(
            real, given.grad.split([LENGTHS[d] - 1 for d in real]) if real else (), strict=True
        ):
            gradients[d] = part
    wanted = by_hand(max(kl, 0.0), 0.8, 1.4)
    assert weight == COUNT and total == pytest.approx(sum(wanted), abs=1e-12)
    for d, gradient in gradients.items():
        h = sums(1, d) - sums(2, d)
        sign, scale = (1, 0.8) if d % 3 != 1 else (-1, 1.4)
        s = 1 / (1 + math.exp(-sign * BETA * (h - max(kl, 0.0))))
        assert gradient.tolist() == pytest.approx(
            [-sign * scale * BETA * s * (1 - s)] * len(gradient), abs=1e-12
        )


def test_apo_zero_unpaired_has_no_baseline_and_asks_for_none() -> None:
    algorithm = KTO(beta=BETA, loss_type="apo_zero_unpaired")
    assert algorithm.window_means is None and KTO().window_means is not None
    documents = list(range(COUNT))
    found = algorithm.losses(
        Role.POLICY, {Output.LOGPROBS.value: logprobs(1, documents)}, informed(algorithm, documents, None)
    )
    assert float(found["answers"].detach()) == pytest.approx(sum(by_hand(0.0)), abs=1e-12)


@pytest.mark.parametrize("cut", [[list(range(7))], [[0, 1, -1], [2], [3, 4, 5, 6, -1]]])
def test_the_kl_is_a_mean_over_the_whole_window_fillers_left_out(cut: list[list[int]]) -> None:
    algorithm, total, weight = KTO(), 0.0, 0
    for documents in cut:
        outputs = {
            role: {Output.LOGPROBS.value: logprobs(seed, documents).detach()}
            for role, seed in ((Role.POLICY, 1), (Role.REFERENCE, 2))
        }
        value, count = algorithm.window_sums(outputs, batch_of(documents))["kl"]
        total, weight = total + float(value), weight + int(count)
    assert (weight, total) == (
        COUNT,
        pytest.approx(sum(sums(1, d) - sums(2, d) for d in range(COUNT)), abs=1e-12),
    )


def told(documents: list[int], **options: Any) -> dict[str, float]:
    algorithm = KTO(beta=BETA, **options)
    batch = informed(algorithm, documents, 0.6)
    found = algorithm.metrics(Role.POLICY, {Output.LOGPROBS.value: logprobs(1, documents)}, batch)
    count = sum(d >= 0 for d in documents)
    assert set(found) == set(algorithm.train_metrics)
    return algorithm.summary(
        {name.removesuffix("/answers"): float(value) / count for name, value in found.items()}
    )


def test_rewards_are_means_over_the_answers_of_each_label() -> None:
    found = told([*range(COUNT), -1])
    good, bad = [d for d in range(COUNT) if d % 3 != 1], [d for d in range(COUNT) if d % 3 == 1]
    rewards = {d: BETA * (sums(1, d) - sums(2, d)) for d in range(COUNT)}
    wanted = {
        "kl": 0.6,
        "rewards/chosen": sum(rewards[d] for d in good) / len(good),
        "rewards/rejected": sum(rewards[d] for d in bad) / len(bad),
        "logps/chosen": sum(sums(1, d) for d in good) / len(good),
        "logps/rejected": sum(sums(1, d) for d in bad) / len(bad),
    }
    assert found == pytest.approx(
        {**wanted, "rewards/margins": wanted["rewards/chosen"] - wanted["rewards/rejected"]}
    )
    assert set(told([0, 2, 3])) == {"kl", "rewards/chosen", "logps/chosen"}
    assert set(told([1, 4])) == {"kl", "rewards/rejected", "logps/rejected"}


def test_the_reference_is_a_model_beside_or_the_policy_without_its_adapter() -> None:
    assert (KTO().reference_roles, KTO().frozen) == ((Role.REFERENCE,), (Role.REFERENCE,))
    assert (KTO(reference="adapter").reference_roles, KTO(reference="adapter").frozen) == (
        (Role.REFERENCE,),
        (),
    )
    bare = batch_of([0, 1])
    with pytest.raises(AssertionError, match="outputs are missing"):
        KTO().losses(Role.POLICY, {Output.LOGPROBS.value: logprobs(1, [0, 1])}, bare)
    filler = batch_of([-1])
    empty = KTO().losses(Role.POLICY, {Output.LOGPROBS.value: logprobs(1, [])}, filler)
    assert float(empty["answers"].detach()) == 0.0
    known = replace(bare, extras={**bare.extras, REFERENCE: torch.zeros(2, dtype=torch.float64)})
    assert (
        float(
            KTO().losses(Role.POLICY, {Output.LOGPROBS.value: logprobs(1, [0, 1]).detach()}, known)["answers"]
        )
        > 0
    )
