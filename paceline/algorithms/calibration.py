"""How far the probabilities that a preference model gives are from what happens: expected calibration error over bins of confidence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BINS = 10
_PREFIX = "calibration"
_PARTS = ("count", "confidence", "correct")


def calibration_sums(gap: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Sums a bin (``calibration/3/count`` …) of pairs whose reward gap r_chosen - r_rejected is ``gap`` [P].

    Under Bradley-Terry the model holds the better-scored answer for better with probability σ(|gap|), its confidence, from 0.5 to 1; it is
    right where the gap is above 0. Bin k of ``BINS`` holds confidences from 0.5 + k / (2 BINS) on.
    """
    confidence = torch.sigmoid(gap.double().abs())
    index = ((confidence - 0.5) * 2 * BINS).long().clamp_(max=BINS - 1)
    weight = real.double()
    found = {"count": weight, "confidence": confidence * weight, "correct": (gap > 0).double() * weight}
    sums = {name: value.new_zeros(BINS).index_add(0, index, value) for name, value in found.items()}
    return {f"{_PREFIX}/{k}/{name}": sums[name][k] for name in _PARTS for k in range(BINS)}


def calibration_table(means: Mapping[str, float]) -> list[tuple[float, float, float]]:
    """(share of pairs, mean confidence, share that was right) of every bin that has pairs."""
    rows = []
    for k in range(BINS):
        share, confidence, correct = (means.get(f"{_PREFIX}/{k}/{name}", 0.0) for name in _PARTS)
        if share > 0:
            rows.append((share, confidence / share, correct / share))
    return rows


def told_bins(means: Mapping[str, float]) -> dict[str, float]:
    """``calibration/3/share``, ``calibration/3/confidence`` and ``calibration/3/correct`` of every bin that has pairs, for a reliability diagram."""
    found: dict[str, float] = {}
    for k in range(BINS):
        for share, confidence, correct in calibration_table(
            {n: v for n, v in means.items() if n.startswith(f"{_PREFIX}/{k}/")}
        ):
            names = ("share", "confidence", "correct")
            found |= {
                f"{_PREFIX}/{k}/{name}": value for name, value in zip(names, (share, confidence, correct), strict=True)
            }
    return found


def calibration_error(means: Mapping[str, float]) -> float:
    """Σ_bins share · |accuracy - confidence| (Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599, eq. 3)."""
    return sum(share * abs(right - sure) for share, sure, right in calibration_table(means))


def without_bins(means: Mapping[str, float]) -> dict[str, float]:
    """``means`` without the sums by bin."""
    return {name: value for name, value in means.items() if not name.startswith(f"{_PREFIX}/")}


def has_bins(means: Mapping[str, float]) -> bool:
    """Whether the sums by bin were counted (in evaluation)."""
    return any(name.startswith(f"{_PREFIX}/") for name in means)
