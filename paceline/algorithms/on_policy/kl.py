"""Estimators of KL(policy ‖ reference) from log-probabilities of sampled tokens, and its coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

ESTIMATORS = ("k1", "k2", "k3")


def divergence(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return a per-token estimate of KL(π ‖ π_ref), with d = log π_ref - log π at the sampled token.

    k1 = -d (unbiased, may be negative); k2 = d² / 2 (its gradient is that of the KL); k3 = exp(d) - 1 - d
    (unbiased, never negative) (Schulman 2020, "Approximating KL divergence", joschu.net/blog/kl-approx.html).
    """
    d = reference - logprobs
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return 0.5 * d.square()
    if estimator == "k3":
        return d.exp() - 1.0 - d
    raise ValueError(f"estimator {estimator!r}: one of {', '.join(ESTIMATORS)}")


@dataclass
class FixedCoefficient:
    """A constant KL coefficient."""

    value: float

    def update(self, measured: float, num_samples: int) -> None:
        """Do nothing: the coefficient is constant."""

    def state(self) -> dict[str, float]:
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Do nothing: ``state`` is empty."""


@dataclass
class AdaptiveCoefficient:
    """KL coefficient that follows a target: β ← β · (1 + clip(KL / target - 1, -0.2, 0.2) · n / horizon)
    after n samples (Ziegler et al. 2019, eq. 4 and § 2.2).
    """

    value: float
    target: float
    horizon: int

    def update(self, measured: float, num_samples: int) -> None:
        """Update the coefficient from ``measured``, the mean KL per answer over the last ``num_samples``
        answers. A non-finite measurement is ignored.
        """
        if math.isfinite(measured):
            error = min(0.2, max(-0.2, measured / self.target - 1.0))
            self.value *= 1.0 + error * num_samples / self.horizon

    def state(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restore what ``state`` returned."""
        self.value = float(state.get("value", self.value))
