"""REINFORCE with a leave-one-out baseline: RLOO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import GROUP_EPSILON, leave_one_out
from paceline.algorithms.on_policy.base import (
    TERM,
    LabelledTokens,
    OnPolicy,
    field_or,
    num_answers,
    of_answers,
    regrouped,
    sums_of,
    with_tokens,
)
from paceline.algorithms.on_policy.losses import Clipped, clipped_surrogate, divergence, segment_sums
from paceline.config.sections.algorithms.on_policy import RlooOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.rollout import RolloutAnswers
from paceline.runtime.device.device import widened

_OF_TOKENS, _OF_ANSWERS = ("entropy", "sampling_gap"), ("ratio", "clip_low", "clip_high")


class RLOO(OnPolicy):
    """loss = Σ_i -min(ρ_i A_i, clip(ρ_i, 1 - ε_low, 1 + ε_high) A_i) / N over the N answers of ALL ranks of a
    step.

    A whole answer is one action: ρ_i = π(y_i | x) / π_old(y_i | x), the product over its tokens.

    A_i = R_i - Σ_{j≠i} R_j / (G - 1) over the G answers to its prompt, with the KL in the reward, R_i = r_i -
    β log (π_old(y_i | x) / π_ref(y_i | x)) (Ahmadian et al. 2024, "Back to basics: revisiting REINFORCE style
    optimization for learning from human feedback in LLMs", arXiv:2402.14740: the RLOO estimator; Kool et al.
    2019). A rollout that is used for one step has ρ = 1, and the gradient is REINFORCE's, -A_i ∇ log π(y_i |
    x). The clip in later steps, ``normalize_advantages`` and ``reward_clip_range`` follow TRL.
    """

    counts_documents = True
    train_metrics = tuple(f"{name}/{TERM}" for name in ("tokens", "answers", *_OF_TOKENS, *_OF_ANSWERS))

    def __init__(
        self,
        *,
        max_completion_length: int = 256,
        updates_per_pass: int = 1,
        reference: str = "",
        reward_model: bool = False,
        **options: Json,
    ) -> None:
        o = RlooOptions.model_validate(options)
        self.beta, self.normalises, self.score_range = o.beta, o.normalize_advantages, o.reward_clip_range
        self.learns_kl, self.scales_kl = bool(o.beta), o.normalize_advantages
        self.low, self.high = o.epsilon, o.epsilon if o.epsilon_high is None else o.epsilon_high
        self.masks_truncated = o.mask_truncated_completions
        self.set_passes(o.num_iterations, updates_per_pass)
        # The KL in the reward is of π_old, also where a rollout is used once.
        self.uses_old = bool(o.beta) or self.updates_per_rollout > 1
        self.set_models(kl=bool(o.beta), reference=reference, reward_model=reward_model)

    # --- a rollout

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return advantages of the scores alone; ``finalize_rollout`` subtracts those of the KL."""
        return leave_one_out(scores if self.score_range is None else scores.clamp(*self.score_range), groups)

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """Subtract the KL's own leave-one-out advantage (the baseline is linear), then normalise. Collective.

        The statistics are the mean KL per token and per answer.
        """
        flat = [batch for row in batches for batch in row]
        where = [LabelledTokens.of(batch) for batch in flat]
        # The KL's leave-one-out advantage, over the answers of all ranks
        advantages, stats = answers.advantages, {}
        if self.beta:
            kls = [self._divergences(*each) for each in zip(flat, where, strict=True)]
            kl = torch.where(answers.is_scored, answers.everyones(kls), torch.nan)
            advantages = advantages - self.beta * leave_one_out(kl, answers.groups)[0]
            num_tokens = float(answers.everyones([w.lengths for w in where]).sum())
            scored_kl = kl[answers.is_scored]
            stats = {
                "kl": float(scored_kl.sum()) / max(num_tokens, 1.0),
                "kl_answer": float(scored_kl.sum()) / max(len(scored_kl), 1),
            }
        if self.normalises:
            advantages = _normalised(advantages, answers)
        completed = (
            with_tokens(
                batch, "advantage", advantages[indices][tokens.segments].to(batch.tokens["advantage"].dtype)
            )
            for batch, tokens, indices in zip(flat, where, answers.places, strict=True)
        )
        return regrouped(completed, batches), stats

    def _divergences(self, batch: Batch, where: LabelledTokens) -> Tensor:
        """Return log (π_old(y | x) / π_ref(y | x)) of each answer, float64 [D]."""
        kl = divergence(widened(batch.at_labels("old")), widened(batch.at_labels("reference")), "k1")
        return segment_sums(kl, where.segments, len(where.lengths))

    # --- a step

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: num_answers(batch)}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return {
            TERM: (
                self._answer_losses(
                    outputs[Output.LOGPROBS.value], batch, LabelledTokens.of(batch)
                ).loss.sum()
            )
        }

    def _answer_losses(self, logprobs: Tensor, batch: Batch, where: LabelledTokens) -> Clipped:
        """Return the clipped loss of each document [D]; it is 0 for one without labelled tokens."""
        old = field_or(batch, "old", logprobs.detach())
        advantages = of_answers(field_or(batch, "advantage", torch.zeros_like(old)), where)
        # A product of ratios over tokens is a sum of logarithms.
        log_ratio = segment_sums(logprobs - old, where.segments, len(where.lengths))
        return clipped_surrogate(log_ratio, advantages, epsilon_low=self.low, epsilon_high=self.high)

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logprobs, where = outputs[Output.LOGPROBS.value].detach(), LabelledTokens.of(batch)
        clipped, has_loss = self._answer_losses(logprobs, batch, where), where.lengths > 0
        old = field_or(batch, "old", logprobs)
        seen = {
            "tokens": torch.ones_like(logprobs),
            "answers": has_loss,
            "entropy": outputs[Output.ENTROPY.value].detach(),
            "sampling_gap": (old - field_or(batch, "sampled", old)).abs(),
            "ratio": clipped.ratio[has_loss],
            # A document without tokens has ratio 1, which is never clipped.
            "clip_low": clipped.low,
            "clip_high": clipped.high,
        }
        return sums_of(seen, TERM)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return entropy and sampling gap as means over tokens, ratio and clips as means over answers."""
        by = dict.fromkeys(_OF_TOKENS, means.get("tokens", 0.0)) | dict.fromkeys(
            _OF_ANSWERS, means.get("answers", 0.0)
        )
        return {name: means[name] / count if count else 0.0 for name, count in by.items()}


def _normalised(advantages: Tensor, answers: RolloutAnswers) -> Tensor:
    """Return (A - mean) / (std + 1e-4) over scored answers that have another one in their group, 0 for
    others.

    The std has Bessel's correction. With fewer than two such answers the advantages are returned unchanged.
    """
    # An answer alone in its group has advantage 0 by definition, which would narrow the std.
    group_size = torch.bincount(answers.groups[answers.is_scored], minlength=int(answers.groups.max()) + 1)
    compared = answers.is_scored & (group_size[answers.groups] > 1)
    comparable = advantages[compared]
    if len(comparable) < 2:
        return advantages
    return torch.where(compared, (advantages - comparable.mean()) / (comparable.std() + GROUP_EPSILON), 0.0)
