"""Per-token losses and KL estimators as pure functions; sums and weights make the loss (contract 2).

All take tensors [L] over the sampled tokens; ``segments`` int64 [L] gives the answer, of D, that each belongs
to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runtime.device.device import sum_dtype, widened

NORMALISATIONS = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo")


@dataclass(frozen=True)
class Clipped:
    """A clipped loss [L], the importance ratio [L], and where the lower and upper clip were active, bool [L].

    An active clip removes a token's gradient, or bounds its weight (``clipped_weight``).
    """

    loss: Tensor
    ratio: Tensor
    low: Tensor
    high: Tensor


def segment_sums(values: Tensor, segments: Tensor, count: int) -> Tensor:
    """Return [count]: the sum of ``values`` over each answer's tokens."""
    return values.new_zeros(count).index_add(0, segments, values)


def log_ratios(logprobs: Tensor, old: Tensor, segments: Tensor, lengths: Tensor, level: str) -> Tensor:
    """Return the log of the importance ratio [L].

    ``level`` ``token``: log π(t) - log π_old(t). ``sequence``: its mean over the answer, the same for all its
    tokens (Zheng et al. 2025, "Group sequence policy optimization", eq. 7).
    """
    ratio = logprobs - old
    if level == "token":
        return ratio
    # The mean of logarithms is that of the geometric mean of the ratios.
    mean = segment_sums(ratio, segments, len(lengths)) / lengths.clamp(min=1)
    return mean[segments]


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
) -> Clipped:
    """loss_t = -min(ρ_t · A_t, clip(ρ_t, 1 - ε_low, 1 + ε_high) · A_t), ρ = exp(log ratio).

    PPO (Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7) with ε_low = ε_high; ε_high >
    ε_low is clip-higher (Yu et al. 2025, "DAPO", eq. 10). ``delta`` > 1 + ε_high also bounds ρ from above
    where A is negative (two-sided clipping; INTELLECT-2, 2025).
    """
    ratio = log_ratio.exp()
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    clipped = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
    loss = -torch.min(bounded * advantages, clipped * advantages)
    # The clip acts only where min takes its branch: a better answer's ratio may be as small as it likes.
    low = (ratio < 1.0 - epsilon_low) & (advantages < 0)
    high = (ratio > 1.0 + epsilon_high) & (advantages > 0)
    return Clipped(loss, ratio, low, high)


def clipped_weight(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, bound: float) -> Clipped:
    """loss_t = -sg(min(ρ_t, ε_max)) · A_t · log π_t, ρ = exp(log ratio); sg stops the gradient through the
    weight.

    CISPO (MiniMax 2025, "MiniMax-M1", arXiv:2506.13585, eq. 4 and 5, without a lower bound, as there): where
    ``clipped_surrogate`` removes the gradient of a token, this bounds its weight, so that every token
    contributes. ``bound`` is ε_max (Khatri et al. 2025, "ScaleRL", arXiv:2510.13786), the paper's 1 + ε_high.
    ``high`` is true where the weight of a token with A > 0 was bounded; ``low`` is always false.
    """
    ratio = log_ratio.exp()
    # The gradient flows through log π alone.
    loss = -ratio.detach().clamp(max=bound) * advantages * logprobs
    high = (ratio > bound) & (advantages > 0)
    return Clipped(loss, ratio, torch.zeros_like(high), high)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, *, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return (loss [L], clipped bool [L]) of the value model.

    ½ · max((V - R)², (clip(V, V_old ± ε) - R)²); without ``clip`` ½ (V - R)². As in the code of Schulman et
    al. 2017 (OpenAI baselines, ppo2); the ½ is part of the loss.
    """
    plain = (values - returns).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    near = torch.clamp(values, old - clip, old + clip)
    other = (near - returns).square()
    # The larger of the two: pessimistic, as the policy's clip.
    return 0.5 * torch.max(plain, other), other > plain


def token_shares(normalisation: str, segments: Tensor, lengths: Tensor) -> Tensor:
    """Return the factor of each token's loss [L]: 1 / length of its answer for ``grpo``, else 1."""
    if normalisation == "grpo":
        return 1.0 / widened(lengths.clamp(min=1))[segments]
    return torch.ones_like(segments, dtype=sum_dtype(segments.device))


def loss_weight(normalisation: str, num_answers: Tensor, num_tokens: Tensor, max_length: int) -> Tensor:
    """Return the int64 scalar that the sum over the window is divided by.

    grpo     answers: mean over answers of the mean over their tokens (Shao et al. 2024, eq. 3)
    dapo     tokens of the window (Yu et al. 2025, eq. 12); also ``cispo``, and ``bnpo``, which is the same
             here because means are always over the whole window
    dr_grpo  answers · longest allowed answer: a constant, so that the length of answers has no influence
             (Liu et al. 2025, "Understanding R1-zero-like training", § 3.2)
    """
    if normalisation == "grpo":
        return num_answers
    if normalisation == "dr_grpo":
        return num_answers * max_length
    if normalisation in ("dapo", "bnpo", "cispo"):
        return num_tokens
    raise ValueError(f"normalisation {normalisation!r}: one of {', '.join(NORMALISATIONS)}")


def rollout_correction(
    old: Tensor, rollout: Tensor, segments: Tensor, num_answers: int, *, level: str, mode: str, cap: float
) -> Tensor:
    """Return the importance weight [L], without gradient, that corrects for sampling from a different policy.

    ``rollout`` are the engine's log-probabilities at sampling, ``old`` those of the policy that is trained.
    Then w = exp(log π_old - log π_rollout) of the token, or of the whole answer with ``level`` ``sequence``.

    ``mode`` ``truncate`` returns min(w, cap) (Yao et al. 2025, "Your efficient RL framework secretly brings
    you off-policy RL training"); ``mask`` returns 0 where w > cap.
    """
    log_ratio = (old - rollout).detach()
    if level == "sequence":
        # A product over the answer's tokens, unlike GSPO's mean.
        log_ratio = segment_sums(log_ratio, segments, num_answers)[segments]
    weight = log_ratio.exp()
    return weight.clamp(max=cap) if mode == "truncate" else torch.where(weight > cap, 0.0, weight)


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
class KlCoefficient:
    """The coefficient of the KL; with a ``target`` it follows the measured KL.

    β ← β · (1 + clip(KL / target - 1, -0.2, 0.2) · n / horizon) after n samples (Ziegler et al. 2019, eq. 4
    and § 2.2).
    """

    value: float
    target: float | None = None
    horizon: int = 1

    def update(self, measured: float, num_samples: int) -> None:
        """Update from ``measured``, the mean KL per answer over the last ``num_samples`` answers.

        A non-finite measurement is ignored.
        """
        if self.target is not None and math.isfinite(measured):
            # A proportional controller with a bounded error.
            error = min(0.2, max(-0.2, measured / self.target - 1.0))
            self.value *= 1.0 + error * num_samples / self.horizon

    def state(self) -> dict[str, float]:
        return {} if self.target is None else {"value": self.value}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restore what ``state`` returned."""
        self.value = state.get("value", self.value)
