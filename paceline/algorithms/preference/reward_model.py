"""Reward model: one score per answer, higher for chosen than for rejected ones, and its calibration."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.algorithms.preference.pair_policy import halves, real_pairs, sum_of
from paceline.config.sections.algorithms.preference import RewardOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

TERM, CENTER = "pairs", "center"
BINS = 10  # of confidence
_PREFIX, _PARTS = "calibration", ("count", "confidence", "correct")


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    """Return [P]: -log σ(r(x, y_chosen) - r(x, y_rejected) - m(x)).

    Bradley and Terry 1952; as a loss of reward models Ouyang et al. 2022 (arXiv:2203.02155, eq. 1), with a
    margin Touvron et al. 2023 (Llama 2, arXiv:2307.09288, eq. 2).
    """
    return -F.logsigmoid(chosen - rejected - margin)


def centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return [P]: (r(x, y_chosen) + r(x, y_rejected))², which fixes the level of rewards that
    ``bradley_terry`` leaves open.

    Eisenstein et al. 2023 (arXiv:2312.09244, eq. 2).
    """
    return (chosen + rejected).square()


class Reward(Algorithm):
    """loss = Σ_pairs -log σ(r_chosen - r_rejected - margin) / Σ_pairs 1, over the pairs of ALL ranks and
    micro-batches of a step.

    ``center_rewards_coefficient`` times the mean of ``centering`` is added (0: off). Metrics are means over
    pairs: ``accuracy`` (r_chosen > r_rejected), ``margin`` (r_chosen - r_rejected, without the data's
    margin), ``reward_chosen``, ``reward_rejected``; ``reward_mean`` and ``reward_std`` are over all answers.
    Evaluation adds ``calibration_error`` (see ``calibration``).
    """

    trains = (Role.REWARD,)
    counts_documents = True
    train_metrics = tuple(
        f"{name}/{TERM}"
        for name in ("accuracy", "margin", "reward_chosen", "reward_rejected", "reward_mean", "reward_square")
    )

    def __init__(self, **options: Json) -> None:
        self.center = RewardOptions.model_validate(options).center_rewards_coefficient

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.SCORES})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        pairs = real_pairs(batch).sum()
        return {TERM: pairs, CENTER: pairs} if self.center else {TERM: pairs}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        chosen, rejected = halves(outputs[Output.SCORES.value])
        margin = halves(batch.extras["margin"])[0].to(chosen)
        sums = {TERM: sum_of(bradley_terry(chosen, rejected, margin), real)}
        if self.center:
            sums[CENTER] = self.center * sum_of(centering(chosen, rejected), real)
        return sums

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        chosen, rejected = (widened(half.detach()) for half in halves(outputs[Output.SCORES.value]))
        values = {
            "accuracy": (chosen > rejected).to(chosen.dtype),
            "margin": chosen - rejected,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
            "reward_mean": (chosen + rejected) / 2,
            # The std cannot be summed over batches, but its two moments can.
            "reward_square": (chosen.square() + rejected.square()) / 2,
        }
        sums = {name: sum_of(value, real) for name, value in values.items()} | calibration_sums(
            chosen - rejected, real
        )
        return {f"{name}/{TERM}": value for name, value in sums.items()}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the means, the std (from the mean of squares) and the calibration error (from its bins)."""
        plain = {name: value for name, value in means.items() if not name.startswith(f"{_PREFIX}/")}
        bins = calibration(means) if len(plain) < len(means) else {}
        # E[r²] - E[r]²
        variance = plain.pop("reward_square") - plain["reward_mean"] ** 2
        # Rounding may leave a negative variance.
        plain["reward_std"] = max(variance, 0.0) ** 0.5
        return plain | bins


def calibration_sums(gap: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return sums per bin (``calibration/3/count`` …) over pairs with reward gap r_chosen - r_rejected =
    ``gap`` [P].

    ``real`` bool [P] masks fillers. Under Bradley-Terry the model's confidence that the higher-scored answer
    is better is σ(|gap|), from 0.5 to 1; it is correct if the gap is positive. Bin k of ``BINS`` starts at
    confidence 0.5 + k / (2 BINS).
    """
    confidence = torch.sigmoid(widened(gap).abs())
    # A confidence of exactly 1 belongs to the last bin.
    index = ((confidence - 0.5) * 2 * BINS).long().clamp_(max=BINS - 1)
    weight = widened(real)
    of_pairs = {"count": weight, "confidence": confidence * weight, "correct": widened(gap > 0) * weight}
    sums = {name: value.new_zeros(BINS).index_add(0, index, value) for name, value in of_pairs.items()}
    return {f"{_PREFIX}/{k}/{name}": sums[name][k] for name in _PARTS for k in range(BINS)}


def calibration_table(means: Mapping[str, float]) -> dict[int, tuple[float, float, float]]:
    """Return (fraction of pairs, mean confidence, accuracy) of each non-empty bin.

    The second and third are means over the pairs of that bin.
    """
    bins = {k: [means.get(f"{_PREFIX}/{k}/{name}", 0.0) for name in _PARTS] for k in range(BINS)}
    return {k: (share, sure / share, right / share) for k, (share, sure, right) in bins.items() if share > 0}


def calibration(means: Mapping[str, float]) -> dict[str, float]:
    """Return Σ_bins share · |accuracy - confidence| (Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599,
    eq. 3), and ``calibration/3/share``, ``…/confidence`` and ``…/correct`` of each non-empty bin.
    """
    bins = calibration_table(means)
    error = sum(share * abs(right - sure) for share, sure, right in bins.values())
    return {
        "calibration_error": error,
        **{
            f"{_PREFIX}/{k}/{name}": value
            for k, values in bins.items()
            for name, value in zip(("share", *_PARTS[1:]), values, strict=True)
        },
    }
