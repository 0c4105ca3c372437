"""Bradley-Terry: the loss and every statistic against formulas of their own, exact under any split of the
pairs.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from pair_batches import batch_of, pair_batch

from paceline.algorithms.preference.pair_policy import document_labels, document_sums
from paceline.algorithms.preference.reward_model import Reward
from paceline.core.plugins.tables import ALGORITHMS
from paceline.protocols.roles import Output, Role


@pytest.mark.parametrize("center", [0.0, 0.01])
def test_losses_gradients_and_metrics_equal_their_formulas(center: float) -> None:
    batch, scores = batch_of(7)
    algorithm = Reward(center_rewards_coefficient=center)
    outputs = {Output.SCORES.value: scores}
    weights = {name: int(value) for name, value in algorithm.weights(batch).items()}
    assert set(weights.values()) == {7}
    found = algorithm.losses(Role.REWARD, outputs, batch)
    assert set(found) == set(weights)
    r, m = scores.detach().tolist(), batch.extras["margin"].tolist()
    pairs = [(r[2 * i], r[2 * i + 1], m[2 * i]) for i in range(7)]
    expected = sum(math.log1p(math.exp(-(c - d - g))) + center * (c + d) ** 2 for c, d, g in pairs)
    assert sum(v.item() for v in found.values()) == pytest.approx(expected, abs=1e-12)
    sum(found.values()).backward()
    for i, (c, d, g) in enumerate(pairs):
        slope = -1 / (1 + math.exp(c - d - g))
        assert float(scores.grad[2 * i]) == pytest.approx(slope + 2 * center * (c + d), abs=1e-12)
        assert float(scores.grad[2 * i + 1]) == pytest.approx(-slope + 2 * center * (c + d), abs=1e-12)
    assert scores.grad[14:].tolist() == [0.0, 0.0]  # a filler moves nothing
    metrics = {name: float(value) for name, value in algorithm.metrics(Role.REWARD, outputs, batch).items()}
    assert metrics["accuracy/pairs"] == sum(c > d for c, d, _ in pairs)
    assert metrics["margin/pairs"] == pytest.approx(sum(c - d for c, d, _ in pairs), abs=1e-12)
    assert metrics["reward_chosen/pairs"] == pytest.approx(sum(c for c, _, _ in pairs), abs=1e-12)
    assert metrics["reward_rejected/pairs"] == pytest.approx(sum(d for _, d, _ in pairs), abs=1e-12)


def test_labelled_tokens_are_summed_by_document() -> None:
    batch = pair_batch([3, 6, 4, 2], [0, 1, -1, -1], [0.0] * 4)
    assert document_labels(batch).tolist() == [1, 4, 2, 0]
    assert document_sums(torch.arange(7.0), batch).tolist() == [0.0, 10.0, 11.0, 0.0]


def test_spread_and_calibration_error_equal_a_count_pair_by_pair() -> None:
    """In two batches of unlike size: what is added up is what one batch of all pairs gives."""
    algorithm, sums, pairs, everything = Reward(), {}, 0, []
    for count in (7, 60):
        batch, scores = batch_of(count)
        for name, value in algorithm.metrics(Role.REWARD, {Output.SCORES.value: scores}, batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
        pairs += count
        everything += scores.detach().tolist()[: 2 * count]
    told = algorithm.summary({name.removesuffix("/pairs"): value / pairs for name, value in sums.items()})
    drawn = {name: told.pop(name) for name in list(told) if name.startswith("calibration/")}
    assert set(told) == {
        "accuracy",
        "margin",
        "reward_chosen",
        "reward_rejected",
        "reward_mean",
        "reward_std",
        "calibration_error",
    }
    assert told["reward_mean"] == pytest.approx(statistics.fmean(everything), abs=1e-12)
    assert told["reward_std"] == pytest.approx(statistics.pstdev(everything), abs=1e-10)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for chosen, rejected in zip(everything[::2], everything[1::2], strict=True):
        sure = 1 / (1 + math.exp(-abs(chosen - rejected)))
        bins.setdefault(min(int((sure - 0.5) * 20), 9), []).append((sure, chosen > rejected))
    error = sum(abs(sum(s for s, _ in b) - sum(right for _, right in b)) for b in bins.values()) / pairs
    assert error > 0.01 and told["calibration_error"] == pytest.approx(error, abs=1e-10)
    assert len(drawn) == 3 * len(bins) and len(bins) > 2
    for k, members in bins.items():
        expected = {
            "share": len(members) / pairs,
            "confidence": statistics.fmean(s for s, _ in members),
            "correct": statistics.fmean(float(right) for _, right in members),
        }
        assert {name: drawn[f"calibration/{k}/{name}"] for name in expected} == pytest.approx(
            expected, abs=1e-10
        )
    assert {f"eval_{name}" for name in told} | {"eval_loss"} == set(ALGORITHMS.spec("reward").evaluated)


def test_training_tells_no_bins() -> None:
    means = {name.removesuffix("/pairs"): 1.0 for name in Reward.train_metrics}
    assert set(Reward().summary(means)) == {
        "accuracy",
        "margin",
        "reward_chosen",
        "reward_rejected",
        "reward_mean",
        "reward_std",
    }
