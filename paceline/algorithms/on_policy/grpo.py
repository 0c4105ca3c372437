"""Group relative policy optimization and its variants, by options: GRPO, DAPO, Dr. GRPO, GSPO, CISPO."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import group_advantages
from paceline.algorithms.on_policy.base import (
    TERM,
    LabelledTokens,
    OnPolicy,
    field_or,
    num_answers,
    per_token,
    sums_of,
)
from paceline.algorithms.on_policy.losses import (
    clipped_surrogate,
    clipped_weight,
    divergence,
    log_ratios,
    loss_weight,
    rollout_correction,
    token_shares,
)
from paceline.config.sections.algorithms.on_policy import GrpoOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role


class GRPO(OnPolicy):
    """loss = Σ_i Σ_t w_i · [ -min(ρ A_i, clip(ρ, 1 - ε_low, 1 + ε_high) A_i) + β · KL_t ] / W over the
    answers i of ALL ranks of a step (Shao et al. 2024, "DeepSeekMath", eq. 3 and 4).

    A_i is the advantage of answer i over the others to its prompt (``advantages.group_advantages``). ρ is π /
    π_old of the token, or the exponential of the mean log-ratio over the answer
    (``importance_sampling_level`` ``sequence``). The weights w_i and W depend on ``loss_type``
    (``policy_losses.loss_weight``); ``cispo`` replaces the clipped ratio by ``policy_losses.clipped_weight``.
    With ``beta`` the loss includes the KL to the reference, by ``kl_estimator``. In a rollout that is used
    for one step, π_old = π: ρ is 1 and the gradient is the policy gradient.
    """

    train_metrics = tuple(
        f"{name}/{TERM}"
        for name in ("tokens", "entropy", "kl", "ratio", "clip_low", "clip_high", "sampling_gap")
    )

    def __init__(
        self,
        *,
        max_completion_length: int = 256,
        updates_per_pass: int = 1,
        reference: str = "",
        reward_model: bool = False,
        **options: Json,
    ) -> None:
        o = GrpoOptions.model_validate(options)
        self.beta, self.estimator, self.weighted_kl = o.beta, o.kl_estimator, o.use_bias_correction_kl
        self.low, self.high, self.delta = (
            o.epsilon,
            o.epsilon if o.epsilon_high is None else o.epsilon_high,
            o.delta,
        )
        self.loss_type, self.scale, self.level = o.loss_type, o.scale_rewards, o.importance_sampling_level
        self.bounds_weight = o.loss_type == "cispo"  # the upper bound is ``high``, not 1 + ``high``
        self.masks_truncated, self.longest = o.mask_truncated_completions, max_completion_length
        self.correction, self.correction_level = o.rollout_correction, o.rollout_correction_level
        self.cap = o.rollout_correction_cap
        self.set_passes(o.num_iterations, updates_per_pass)
        # In a rollout's only step π_old is π itself, so its forward is saved.
        self.learns_kl, self.uses_old = bool(o.beta), self.updates_per_rollout > 1
        self.set_models(kl=bool(o.beta), reference=reference, reward_model=reward_model)

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        return group_advantages(scores, groups, scale=self.scale)

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: loss_weight(self.loss_type, num_answers(batch), batch.num_labels(), self.longest)}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logprobs, where = outputs[Output.LOGPROBS.value], LabelledTokens.of(batch)
        shares = token_shares(self.loss_type, where.segments, where.lengths).to(logprobs.dtype)
        return {TERM: (self._token_losses(logprobs, batch, where)[0] * shares).sum()}

    def _token_losses(
        self, logprobs: Tensor, batch: Batch, where: LabelledTokens
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return (loss [L], metric name → values [L])."""
        # The clipped policy-gradient term; without precomputed log-probabilities π_old = π
        old = field_or(batch, "old", logprobs.detach())
        advantages = field_or(batch, "advantage", torch.zeros_like(old))
        ratios = log_ratios(logprobs, old, where.segments, where.lengths, self.level)
        if self.bounds_weight:
            clipped = clipped_weight(ratios, logprobs, advantages, bound=self.high)
        else:
            clipped = clipped_surrogate(
                ratios, advantages, epsilon_low=self.low, epsilon_high=self.high, delta=self.delta
            )
        loss = clipped.loss
        # Correction for sampling from another policy, and the KL to the reference
        sampled = field_or(batch, "sampled", old)
        if self.correction != "none":
            loss = loss * rollout_correction(
                old,
                sampled,
                where.segments,
                len(where.lengths),
                level=self.correction_level,
                mode=self.correction,
                cap=self.cap,
            )
        seen = {
            "ratio": clipped.ratio,
            "clip_low": clipped.low,
            "clip_high": clipped.high,
            "sampling_gap": (old - sampled).abs(),
        }
        if self.beta:
            kl = divergence(logprobs, field_or(batch, "reference", logprobs.detach()), self.estimator)
            # The ratio weights the KL, as tokens were drawn from π_old (DeepSeek-V3.2).
            loss = loss + self.beta * (kl * clipped.ratio if self.weighted_kl else kl)
            seen["kl"] = kl
        return loss, seen

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logprobs = outputs[Output.LOGPROBS.value].detach()
        _, seen = self._token_losses(logprobs, batch, LabelledTokens.of(batch))
        entropy = {"entropy": outputs[Output.ENTROPY.value].detach(), "tokens": torch.ones_like(logprobs)}
        # All names on all ranks, whatever the options: metrics are summed over ranks by name.
        seen = {"kl": torch.zeros_like(logprobs), **seen, **entropy}
        return sums_of(seen, TERM)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        averages = per_token(means)
        return averages if self.beta else {name: value for name, value in averages.items() if name != "kl"}
