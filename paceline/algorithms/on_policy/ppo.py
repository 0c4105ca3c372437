"""Proximal policy optimization with a value model, as it is used for language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import (
    generalised_advantages,
    missing_end_penalty,
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
from paceline.algorithms.on_policy.losses import (
    KlCoefficient,
    clipped_surrogate,
    divergence,
    value_loss,
)
from paceline.config.sections.algorithms.on_policy import PpoOptions
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.rollout import PrecomputedField, RolloutAnswers, Sum
from paceline.runtime.device.device import widened

VALUE = "value"
_POLICY = ("entropy", "kl", "ratio", "clip_low", "clip_high", "approx_kl", "sampling_gap")
_VALUE = ("value_loss", "value_clip", "error", "error_square", "return", "return_square")


class PPO(OnPolicy):
    """loss = Σ_t -min(ρ_t A_t, clip(ρ_t, 1 ± ε) A_t) / T + c_v · Σ_t ½ max((V_t - R_t)², (clip(V_t, V_old ±
    ε_v) - R_t)²) / T over the T tokens of ALL ranks of a step (Schulman et al. 2017, eq. 7 and 9, without the
    entropy term).

    The reward of a token is -β · KL_t, plus the answer's score at its last token (Ziegler et al. 2019, eq. 2;
    ``kl_in`` ``loss`` puts β · KL_t into the policy's loss instead). A and R come from generalised advantage
    estimation (``advantages.generalised_advantages``), A whitened over all tokens of the rollout. With
    ``adap_kl_ctrl`` β follows the measured KL: each rollout is trained with the β that the earlier ones led
    to.
    """

    trains = (Role.POLICY, Role.VALUE)
    train_metrics = (*(f"{name}/{TERM}" for name in _POLICY), *(f"{name}/{VALUE}" for name in _VALUE))
    uses_group_baseline = False
    extra_fields = ("return",)

    def __init__(
        self,
        *,
        max_completion_length: int = 256,
        updates_per_pass: int = 1,
        reference: str = "",
        reward_model: bool = False,
        **options: Json,
    ) -> None:
        o = PpoOptions.model_validate(options)
        self.estimator, self.in_loss = o.kl_estimator, o.kl_in == "loss"
        self.clip, self.value_clip, self.vf_coef = o.cliprange, o.cliprange_value, o.vf_coef
        self.gamma, self.lam = o.gamma, o.lam
        self.whiten_advantages, self.whiten_rewards = o.whiten_advantages, o.whiten_rewards
        self.missing_eos_penalty, self.score_clip = o.missing_eos_penalty, o.cliprange_reward
        self.set_passes(o.num_ppo_epochs, updates_per_pass)
        self.controller = KlCoefficient(o.kl_coef, o.target if o.adap_kl_ctrl else None, o.horizon)
        self.kl_coef = o.kl_coef  # for the current rollout; the controller holds that of the next one
        self.set_models(kl=bool(o.kl_coef), reference=reference, reward_model=reward_model)

    # --- a rollout

    def precomputed_fields(self) -> Sequence[PrecomputedField]:
        # ``uses_old`` is always true here: advantages need values and the KL of the policy that answered.
        old, *reference = super().precomputed_fields()
        return [old, PrecomputedField("values", Role.VALUE, Output.VALUES), *reference]

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped scores, less the penalty for truncated answers; ``finalize_rollout`` makes
        advantages of them.
        """
        # Not scored: its tokens have no part in the loss.
        clipped = torch.nan_to_num(scores, nan=0.0)
        if self.score_clip is not None:
            clipped = clipped.clamp(-self.score_clip, self.score_clip)
        if self.missing_eos_penalty is not None:
            clipped = missing_end_penalty(clipped, ended, self.missing_eos_penalty)
        return clipped, torch.zeros_like(clipped)

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """Compute advantages and returns of every token from scores, log-probabilities and values.

        Whitening and the update of β use the tokens and answers of all ranks. Collective.
        """
        self.kl_coef, total = self.controller.value, answers.total
        flat = [batch for row in batches for batch in row]
        places = [LabelledTokens.of(batch) for batch in flat]
        kls = [self._divergence(batch) for batch in flat]
        # Token rewards: the KL penalty, and the answer's score at its last token
        rewards = [self._rewards(*each) for each in zip(flat, places, kls, strict=True)]
        if self.whiten_rewards:
            rewards = whitened(rewards, total, shift_mean=False)
        estimates = [
            generalised_advantages(
                reward,
                widened(batch.at_labels("values")),
                where.segments,
                discount=self.gamma,
                trace=self.lam,
            )
            for reward, batch, where in zip(rewards, flat, places, strict=True)
        ]
        advantages, returns = [a for a, _ in estimates], [r for _, r in estimates]
        # Log the advantages before whitening; this also updates the KL controller for the next rollout
        stats = self._statistics(flat, places, kls, advantages, returns, total)
        if self.whiten_advantages:
            advantages = whitened(advantages, total)
        dtype = flat[0].tokens["advantage"].dtype
        completed = (
            with_tokens(with_tokens(batch, "advantage", a.to(dtype)), "return", r.to(dtype))
            for batch, a, r in zip(flat, advantages, returns, strict=True)
        )
        return regrouped(completed, batches), stats

    def _divergence(self, batch: Batch) -> Tensor:
        """Return the KL between the policy of this rollout and the reference: float64 [L], 0 without a
        reference.
        """
        old = widened(batch.at_labels("old"))
        reference = widened(batch.at_labels("reference")) if self.uses_reference else old
        return divergence(old, reference, self.estimator)

    def _rewards(self, batch: Batch, where: LabelledTokens, kl: Tensor) -> Tensor:
        """Return the token rewards, float64 [L].

        Until it is replaced, ``advantage`` holds the answer's score at each token.
        """
        scores = of_answers(widened(batch.at_labels("advantage")), where)
        return token_rewards(scores, None if self.in_loss else kl, where.segments, coefficient=self.kl_coef)

    def _statistics(
        self,
        batches: Sequence[Batch],
        places: Sequence[LabelledTokens],
        kls: Sequence[Tensor],
        advantages: Sequence[Tensor],
        returns: Sequence[Tensor],
        total: Sum,
    ) -> dict[str, float]:
        """Return means over the rollout's answers and tokens, and update the KL controller. Collective."""
        sums = torch.zeros(8, dtype=torch.float64)
        for batch, where, kl, advantage, value in zip(batches, places, kls, advantages, returns, strict=True):
            last = torch.ones_like(where.segments, dtype=torch.bool)
            # ``advantage`` still holds the score at each token; it counts once an answer.
            last[:-1] = where.segments[1:] != where.segments[:-1]
            score = widened(batch.at_labels("advantage"))[last].sum()
            expected = widened(batch.at_labels("values")).sum()
            counts = [widened(where.lengths.sum()), widened(last.sum())]
            sums += torch.stack(
                [*counts, kl.sum(), score, advantage.sum(), advantage.square().sum(), value.sum(), expected]
            )
        tokens, answers, kl_sum, score_sum, first, second, return_sum, value_sum = total(sums.tolist())
        over, each = max(tokens, 1.0), max(answers, 1.0)
        if answers and self.uses_reference:
            self.controller.update(kl_sum / answers, int(answers))
        # rounding may leave a negative variance
        spread = max(0.0, second / over - (first / over) ** 2) ** 0.5
        stats = {"score": score_sum / each, "advantage": first / over, "advantage_std": spread}
        stats |= {"returns": return_sum / over, "values": value_sum / over}
        return stats | ({"kl_answer": kl_sum / each, "kl_coef": self.kl_coef} if self.uses_reference else {})

    # --- a step

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        values = frozenset({Output.VALUES})
        return values if role is Role.VALUE else super().required_outputs(role, training=training)

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        tokens = batch.num_labels()
        return {TERM: tokens, VALUE: tokens}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        if role is Role.VALUE:
            return {VALUE: self.vf_coef * self._value_losses(outputs[Output.VALUES.value], batch)[0].sum()}
        return {TERM: self._policy_losses(outputs[Output.LOGPROBS.value], batch)[0].sum()}

    def _policy_losses(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (loss [L], metric name → values [L])."""
        old = field_or(batch, "old", logprobs.detach())
        ratios = logprobs - old
        clipped = clipped_surrogate(
            ratios,
            field_or(batch, "advantage", torch.zeros_like(old)),
            epsilon_low=self.clip,
            epsilon_high=self.clip,
        )
        kl = divergence(logprobs, field_or(batch, "reference", logprobs.detach()), self.estimator)
        loss = clipped.loss + self.kl_coef * kl if self.in_loss else clipped.loss
        seen = {"kl": kl, "ratio": clipped.ratio, "clip_low": clipped.low, "clip_high": clipped.high}
        gap = (old - field_or(batch, "sampled", old)).abs()
        # k2 of KL(π ‖ π_old): how far this rollout's steps have moved the policy.
        return loss, {**seen, "approx_kl": 0.5 * ratios.square(), "sampling_gap": gap}

    def _value_losses(self, values: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        old = field_or(batch, "values", values.detach())
        returns = field_or(batch, "return", torch.zeros_like(old))
        loss, clipped = value_loss(values, old, returns, clip=self.value_clip)
        error = returns - values
        seen = {"value_loss": loss, "value_clip": clipped, "error": error, "error_square": error.square()}
        return loss, {**seen, "return": returns, "return_square": returns.square()}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        if role is Role.VALUE:
            values = widened(outputs[Output.VALUES.value].detach())
            return sums_of(self._value_losses(values, batch)[1], VALUE)
        _, seen = self._policy_losses(outputs[Output.LOGPROBS.value].detach(), batch)
        seen["entropy"] = outputs[Output.ENTROPY.value].detach()
        return sums_of(seen, TERM)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the means, with the value errors as explained variance, 1 - Var(R - V) / Var(R)."""
        shown = {name: means[name] for name in (*_POLICY, "value_loss", "value_clip")}
        if not self.uses_reference:
            del shown["kl"]
        # Var(R - V)
        left = means["error_square"] - means["error"] ** 2
        variance = means["return_square"] - means["return"] ** 2
        return {**shown, "explained_variance": 1.0 - left / variance if variance > 0.0 else 0.0}

    # --- a checkpoint

    def state(self) -> JsonObject:
        return {"kl_coef": self.kl_coef, "controller": self.controller.state()}

    def load_state(self, state: JsonObject) -> None:
        self.kl_coef = as_number(state.get("kl_coef", self.kl_coef))
        controller = as_object(state.get("controller"))
        self.controller.load_state({name: as_number(value) for name, value in controller.items()})
