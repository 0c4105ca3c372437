"""REINFORCE++: REINFORCE with PPO's clip and globally normalised advantages, optionally a group baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import (
    generalised_advantages,
    group_advantages,
    moments,
    token_rewards,
    whitened,
)
from paceline.algorithms.on_policy.base import (
    TERM,
    LabelledTokens,
    OnPolicy,
    field_or,
    of_answers,
    regrouped,
    sums_of,
    with_tokens,
)
from paceline.algorithms.on_policy.losses import clipped_surrogate, divergence
from paceline.config.sections.algorithms.on_policy import ReinforcePlusPlusOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.rollout import RolloutAnswers
from paceline.runtime.device.device import sum_dtype, widened

_SEEN = ("entropy", "kl", "ratio", "clip_low", "clip_high", "sampling_gap")


class ReinforcePlusPlus(OnPolicy):
    """loss = Σ_t -min(ρ_t A_t, clip(ρ_t, 1 - ε_low, 1 + ε_high) A_t) / T over the T tokens of ALL ranks of a
    step.

    A_t = r - β Σ_{i≥t} KL_i with KL_i = log (π_old / π_ref) of token i and r the answer's score (γ < 1
    discounts later rewards). Then (A - mean) / std over the tokens of ALL answers of the rollout, not per
    group (Hu et al. 2025, "REINFORCE++", arXiv:2501.03262v9, § 3.1).

    ``group_baseline`` (the paper's "w/ Baseline", § 3.2; OpenRLHF's ``reinforce_baseline``) subtracts the
    mean of the group from the score. The paper then puts the KL into the loss, as β · KL_t of π estimated by
    k2 (``kl_in`` ``loss``, ``kl_estimator`` ``k2``).
    """

    train_metrics = tuple(f"{name}/{TERM}" for name in _SEEN)

    def __init__(
        self,
        *,
        max_completion_length: int = 256,
        updates_per_pass: int = 1,
        reference: str = "",
        reward_model: bool = False,
        **options: Json,
    ) -> None:
        o = ReinforcePlusPlusOptions.model_validate(options)
        self.beta, self.estimator, self.in_loss, self.gamma = (
            o.beta,
            o.kl_estimator,
            o.kl_in == "loss",
            o.gamma,
        )
        self.uses_group_baseline = o.group_baseline
        self.learns_kl, self.scales_kl = bool(o.beta), not self.in_loss
        self.low, self.high = o.epsilon, o.epsilon if o.epsilon_high is None else o.epsilon_high
        self.masks_truncated = o.mask_truncated_completions
        self.set_passes(o.num_iterations, updates_per_pass)
        # The KL in the reward is of π_old; that in the loss is of π.
        self.uses_old = self.updates_per_rollout > 1 or (bool(o.beta) and not self.in_loss)
        self.set_models(kl=bool(o.beta), reference=reference, reward_model=reward_model)

    # --- a rollout

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores, less their group's mean with ``group_baseline``.

        ``finalize_rollout`` makes advantages of them.
        """
        if self.uses_group_baseline:
            return group_advantages(scores, groups, scale="none")
        # An answer that was not scored has no tokens in the loss.
        numbers = torch.nan_to_num(scores, nan=0.0)
        return numbers, torch.zeros_like(numbers)

    def is_flat(self, scores: Tensor, spread: Tensor) -> bool:
        """Without groups: whether all returns, of which the mean is subtracted, are equal."""
        scored = scores[~scores.isnan()]
        equal = self.gamma == 1 and bool((scored == scored[:1]).all())
        return super().is_flat(scores, spread) if self.uses_group_baseline else equal

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """Compute each token's return, normalised over the tokens of all ranks. Collective."""
        flat = [batch for row in batches for batch in row]
        where = [LabelledTokens.of(batch) for batch in flat]
        kls = [self._divergence(batch) for batch in flat]
        returns = [self._returns(*each) for each in zip(flat, where, kls, strict=True)]
        # Statistics before normalisation; then each micro-batch gets its normalised advantages
        stats = _statistics(where, kls, returns, answers)
        dtype = flat[0].tokens["advantage"].dtype
        completed = (
            with_tokens(batch, "advantage", advantage.to(dtype))
            for batch, advantage in zip(flat, whitened(returns, answers.total), strict=True)
        )
        # Without a KL in the reward its mean says nothing.
        if not self.beta or self.in_loss:
            del stats["kl_answer"]
        return regrouped(completed, batches), stats

    def _divergence(self, batch: Batch) -> Tensor:
        """Return the KL between the policy of this rollout and the reference: float64 [L]; 0 if the reward
        has no KL.
        """
        if not self.beta or self.in_loss:
            sampled = batch.at_labels("sampled")
            return torch.zeros_like(sampled, dtype=sum_dtype(sampled.device))
        return divergence(
            widened(batch.at_labels("old")), widened(batch.at_labels("reference")), self.estimator
        )

    def _returns(self, batch: Batch, where: LabelledTokens, kl: Tensor) -> Tensor:
        """Return float64 [L].

        Until it is replaced, ``advantage`` holds the answer's score at each of its tokens.
        """
        scores = of_answers(widened(batch.at_labels("advantage")), where)
        rewards = token_rewards(scores, kl, where.segments, coefficient=self.beta)
        nothing = torch.zeros_like(rewards)  # no value model: returns are sums of rewards
        return generalised_advantages(rewards, nothing, where.segments, discount=self.gamma, trace=1.0)[1]

    # --- a step

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: batch.num_labels()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: self._token_losses(outputs[Output.LOGPROBS.value], batch)[0].sum()}

    def _token_losses(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (loss [L], metric name → values [L])."""
        old = field_or(batch, "old", logprobs.detach())
        clipped = clipped_surrogate(
            logprobs - old,
            field_or(batch, "advantage", torch.zeros_like(old)),
            epsilon_low=self.low,
            epsilon_high=self.high,
        )
        kl = divergence(logprobs, field_or(batch, "reference", logprobs.detach()), self.estimator)
        seen = {"kl": kl, "ratio": clipped.ratio, "clip_low": clipped.low, "clip_high": clipped.high}
        gap = (old - field_or(batch, "sampled", old)).abs()
        return clipped.loss + self.beta * kl if self.in_loss else clipped.loss, {**seen, "sampling_gap": gap}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        _, seen = self._token_losses(outputs[Output.LOGPROBS.value].detach(), batch)
        seen["entropy"] = outputs[Output.ENTROPY.value].detach()
        return sums_of(seen, TERM)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the means unchanged; without a reference there is no KL."""
        return {name: means[name] for name in _SEEN if self.beta or name != "kl"}


def _statistics(
    where: Sequence[LabelledTokens], kls: Sequence[Tensor], returns: Sequence[Tensor], answers: RolloutAnswers
) -> dict[str, float]:
    """Return means over a rollout's tokens before normalisation, and the mean KL per answer. Collective."""
    own = torch.stack([moments(each) for each in returns]).sum(0).tolist()
    has_loss = sum(int((w.lengths > 0).sum()) for w in where)
    tokens, first, second, count, kl = answers.total(
        [*own, float(has_loss), sum(float(each.sum()) for each in kls)]
    )
    # A rollout may have no scored answer at all.
    over = max(tokens, 1.0)
    spread = max(0.0, second / over - (first / over) ** 2) ** 0.5
    return {"advantage": first / over, "advantage_std": spread, "kl_answer": kl / max(count, 1.0)}
