"""Calibration of a preference model: expected calibration error over bins of confidence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.runtime.device.device import widened

BINS = 10
_PREFIX = "calibration"
_PARTS = ("count", "confidence", "correct")


def calibration_sums(gap: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return sums per bin (``calibration/3/count`` …) over pairs with reward gap r_chosen - r_rejected =
    ``gap`` [P].

    ``real`` bool [P] masks fillers. Under Bradley-Terry the model's confidence that the higher-scored answer
    is better is σ(|gap|), from 0.5 to 1; it is correct if the gap is positive. Bin k of ``BINS`` starts at
    confidence 0.5 + k / (2 BINS).
    """
    confidence = torch.sigmoid(widened(gap).abs())
    index = ((confidence - 0.5) * 2 * BINS).long().clamp_(max=BINS - 1)
    weight = widened(real)
    found = {"count": weight, "confidence": confidence * weight, "correct": widened(gap > 0) * weight}
    sums = {name: value.new_zeros(BINS).index_add(0, index, value) for name, value in found.items()}
    return {f"{_PREFIX}/{k}/{name}": sums[name][k] for name in _PARTS for k in range(BINS)}


def calibration_table(means: Mapping[str, float]) -> list[tuple[float, float, float]]:
    """Return (fraction of pairs, mean confidence, accuracy) of each non-empty bin.

    The second and third are means over the pairs of that bin.
    """
    rows = []
    for k in range(BINS):
        share, confidence, correct = (means.get(f"{_PREFIX}/{k}/{name}", 0.0) for name in _PARTS)
        if share > 0:
            rows.append((share, confidence / share, correct / share))
    return rows


def told_bins(means: Mapping[str, float]) -> dict[str, float]:
    """Return ``calibration/3/share``, ``…/confidence`` and ``…/correct`` of each non-empty bin."""
    found: dict[str, float] = {}
    for k in range(BINS):
        for share, confidence, correct in calibration_table(
            {n: v for n, v in means.items() if n.startswith(f"{_PREFIX}/{k}/")}
        ):
            names = ("share", "confidence", "correct")
            found |= {
                f"{_PREFIX}/{k}/{name}": value
                for name, value in zip(names, (share, confidence, correct), strict=True)
            }
    return found


def calibration_error(means: Mapping[str, float]) -> float:
    """Return Σ_bins share · |accuracy - confidence| (Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599,
    eq. 3).
    """
    return sum(share * abs(right - sure) for share, sure, right in calibration_table(means))


def without_bins(means: Mapping[str, float]) -> dict[str, float]:
    """Return ``means`` without the sums per bin."""
    return {name: value for name, value in means.items() if not name.startswith(f"{_PREFIX}/")}


def has_bins(means: Mapping[str, float]) -> bool:
    """Whether ``means`` holds sums per bin (evaluation computes them)."""
    return any(name.startswith(f"{_PREFIX}/") for name in means)
