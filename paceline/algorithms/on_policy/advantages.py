"""Advantages of answers and of their tokens, as pure functions of rewards and values.

``segments`` int64 [L] gives the answer that each of L tokens belongs to. Answers are contiguous and numbered
0 … D-1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.protocols.rollout import Sum
from paceline.runtime.device.device import widened

GROUP_EPSILON = 1e-4  # added to the std of a group's rewards, as in TRL
WHITEN_EPSILON = 1e-8


def generalised_advantages(
    rewards: Tensor, values: Tensor, segments: Tensor, *, discount: float = 1.0, trace: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return (advantages [L], returns [L]) by GAE; each answer is an episode that ends after its last token.

    δ_t = r_t + γ · V_{t+1} - V_t with V = 0 after the end; A_t = δ_t + γ · λ · A_{t+1}; returns R_t = A_t +
    V_t (Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation",
    eq. 16; γ is ``discount``, λ is ``trace``). No gradient flows.
    """
    rewards, values = rewards.detach(), values.detach()
    same = torch.zeros_like(segments, dtype=torch.bool)
    # False at the last token of each answer: V after the end is 0.
    same[:-1] = segments[1:] == segments[:-1]
    following = torch.zeros_like(values)
    following[:-1] = values[1:]
    # δ for all tokens at once; then the recursion backwards over a padded [D, longest] table
    delta = rewards + discount * following * same - values
    table, places = _padded(delta, segments)
    carried = table.new_zeros(table.shape[0])
    for t in range(table.shape[1] - 1, -1, -1):  # padding follows each answer and is 0, so nothing leaks in
        carried = table[:, t] + discount * trace * carried
        table[:, t] = carried
    advantages = table[places]
    return advantages, advantages + values


def _padded(flat: Tensor, segments: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the values as [D, longest answer], zero-padded, and the index (row, column) of each token."""
    if not flat.numel():
        return flat.new_zeros(0, 0), (segments, segments)
    counts = torch.bincount(segments)
    starts = counts.cumsum(0) - counts
    # The place of each token within its answer.
    column = torch.arange(len(segments), device=segments.device) - starts[segments]
    table = flat.new_zeros(len(counts), int(counts.max()))
    table[segments, column] = flat
    return table, (segments, column)


def moments(values: Tensor) -> Tensor:
    """Return float64 [3]: count, sum and sum of squares; their sum over ranks is ``total`` of ``whiten``."""
    wide = widened(values.detach())
    # Sums alone: these add up over ranks, as mean and variance do not.
    return torch.stack([wide.new_tensor(float(wide.numel())), wide.sum(), wide.square().sum()])


def whiten(values: Tensor, total: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Return (x - mean) / sqrt(var + 1e-8), with Bessel's correction and the statistics in ``total``.

    ``total`` is the sum of ``moments`` over everything that is whitened together. ``shift_mean=False`` keeps
    the mean (as for rewards). With fewer than two values the variance counts as 1.
    """
    count, first, second = (float(x) for x in total)
    mean = first / count if count else 0.0
    # rounding may leave a negative variance
    spread = max(0.0, (second - count * mean * mean) / (count - 1)) if count > 1 else 1.0
    centred = (widened(values) - mean) * (spread + WHITEN_EPSILON) ** -0.5
    return (centred if shift_mean else centred + mean).to(values.dtype)


def whitened(values: Sequence[Tensor], total: Sum, *, shift_mean: bool = True) -> list[Tensor]:
    """Whiten this rank's tensors with the moments of all tensors on all ranks. Collective."""
    # One collective for all tensors.
    sums = torch.stack([moments(each) for each in values]).sum(0)
    totals = torch.tensor(total(sums.tolist()), dtype=torch.float64)
    return [whiten(each, totals, shift_mean=shift_mean) for each in values]


def group_advantages(rewards: Tensor, groups: Tensor, *, scale: str = "group") -> tuple[Tensor, Tensor]:
    """Return (advantages [N], std of the group [N]) of N answers with ``rewards`` [N]; NaN: not scored,
    advantage 0.

    ``groups`` int64 [N] numbers the prompts. A_i = (r_i - mean of its group) / (std of its group + 1e-4),
    with Bessel's correction: GRPO (Shao et al. 2024, "DeepSeekMath", § 4.1.2).

    ``scale``: ``group`` as above; ``batch`` divides by the std over all answers (Hu et al. 2025,
    REINFORCE++); ``none`` does not divide (Liu et al. 2025, "Understanding R1-zero-like training", Dr. GRPO).
    A group of one answer, or of equal rewards, has advantage 0 and std 0, so it gives no gradient.
    """
    judged = ~torch.isnan(rewards)
    filled = torch.where(judged, rewards, 0.0)
    size = int(groups.max()) + 1 if groups.numel() else 0

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(size).index_add_(0, groups, values)

    count = total(judged.to(rewards.dtype))
    # A group without a scored answer: 0 / 1.
    mean = total(filled) / count.clamp(min=1)
    centred = torch.where(judged, filled - mean[groups], 0.0)
    spread = (total(centred.square()) / (count - 1).clamp(min=1)).sqrt()
    # Minimum and maximum per group, to detect equal rewards exactly
    high = rewards.new_full((size,), -torch.inf).scatter_reduce_(
        0, groups, torch.where(judged, rewards, -torch.inf), "amax"
    )
    low = rewards.new_full((size,), torch.inf).scatter_reduce_(
        0, groups, torch.where(judged, rewards, torch.inf), "amin"
    )
    flat = high <= low  # equal rewards: rounding of their mean must not become an advantage
    spread = torch.where(flat, 0.0, spread)
    centred = torch.where(flat[groups], 0.0, centred)
    if scale == "none":
        return centred, spread[groups]
    if scale == "batch":
        deviation = filled[judged].std() if int(judged.sum()) > 1 else rewards.new_zeros(())
        return centred / (deviation + GROUP_EPSILON), spread[groups]
    return centred / (spread[groups] + GROUP_EPSILON), spread[groups]


def leave_one_out(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return (advantages [N], std [N]) as ``group_advantages``, with RLOO's baseline.

    A_i = r_i - the mean of the *other* scored answers to its prompt (Kool et al. 2019, "Buy 4 REINFORCE
    samples, get a baseline for free!"; Ahmadian et al. 2024, arXiv:2402.14740). This is n / (n - 1) times the
    difference from the mean of all n. It is 0 for NaN (not scored), for the only scored answer and for equal
    rewards.
    """
    centred, spread = group_advantages(rewards, groups, scale="none")
    judged = (~torch.isnan(rewards)).to(rewards.dtype)
    count = rewards.new_zeros(len(groups)).index_add_(0, groups, judged)[groups]
    return centred * (count / (count - 1).clamp(min=1)), spread


def missing_end_penalty(scores: Tensor, ended: Tensor, penalty: float) -> Tensor:
    """Return scores [N], less ``penalty`` for truncated answers (``ended`` bool [N] false)."""
    return scores - penalty * (~ended).to(scores.dtype)


def token_rewards(
    scores: Tensor, divergence: Tensor | None, segments: Tensor, *, coefficient: float
) -> Tensor:
    """Return [L]: -``coefficient`` · KL_t at every token, plus the answer's score ([D]) at its last token.

    Ziegler et al. 2019, "Fine-tuning language models from human preferences", eq. 2.
    """
    rewards = scores.new_zeros(len(segments))
    if divergence is not None:
        rewards = rewards - coefficient * divergence.detach().to(rewards.dtype)
    last = torch.ones_like(segments, dtype=torch.bool)
    # Answers are contiguous, so the last token is where the number changes.
    last[:-1] = segments[1:] != segments[:-1]
    rewards[last] += scores[segments[last]]
    return rewards
