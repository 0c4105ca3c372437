"""``training.ppo:``, ``rloo:``, ``grpo:`` and ``reinforce_plus_plus:``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    OptFloat,
    OptPath,
    Section,
    Word,
    optional,
    to_number,
)
from paceline.core.json_types import Json


class PpoOptions(Section):
    """PPO; option names as in TRL's PPOConfig where it has them, else as in trlX or TRL 0.11."""

    num_ppo_epochs: Int = Field(default=4, ge=1, description="With algorithm: ppo, epochs over each rollout.")
    kl_coef: Float = Field(
        default=0.05,
        ge=0,
        description="Coefficient of the KL to the reference; with 0 no reference model is loaded.",
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(
        default="k1", description="Estimator of the KL: k1, k2 or k3."
    )
    kl_in: Annotated[str, Word("reward", "loss")] = Field(
        default="reward",
        description="reward: subtract the KL from each token's reward; loss: add it to the policy's loss.",
    )
    adap_kl_ctrl: Bool = Field(
        default=False,
        description="Adapt kl_coef after each rollout so that the KL of an answer approaches target.",
    )
    target: Float = Field(default=6.0, gt=0, description="Target KL of an answer for adap_kl_ctrl.")
    horizon: Int = Field(
        default=10000, ge=1, description="Answers over which adap_kl_ctrl may change kl_coef by a fifth."
    )
    ref_model: OptPath = Field(
        default=None, description="The reference model: a folder or hub name; the initial model when empty."
    )
    value_model: OptPath = Field(
        default=None,
        description=(
            "Weights from which the value model starts: a folder or hub name; when empty the "
            "reward model, or without one the initial model."
        ),
    )
    cliprange: Float = Field(
        default=0.2, gt=0, lt=1, description="Clip the probability ratio to 1 ± cliprange."
    )
    cliprange_value: OptFloat = Field(
        default=0.2,
        gt=0,
        description=(
            "Clip a value to within this distance of the rollout's value in the loss; null: no clipping."
        ),
    )
    vf_coef: Float = Field(default=0.1, gt=0, description="Coefficient of the value loss.")
    gamma: Float = Field(default=1.0, gt=0, le=1, description="Discount factor of rewards.")
    lam: Float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="λ of generalised advantage estimation (GAE): 1 uses returns, 0 relies on the values.",
    )
    whiten_advantages: Bool = Field(
        default=True,
        description=(
            "Normalise the advantages of a rollout to mean 0 and standard deviation 1, over all ranks."
        ),
    )
    whiten_rewards: Bool = Field(
        default=False, description="Scale the token rewards of a rollout to standard deviation 1."
    )
    missing_eos_penalty: OptFloat = Field(
        default=None,
        ge=0,
        description="Subtracted from the score of a truncated answer, one that ends without EOS.",
    )
    cliprange_reward: OptFloat = Field(
        default=None, gt=0, description="Clip scores to ± this value; no clipping when empty."
    )


def to_range(value: Json) -> tuple[float, float]:
    """Convert a list of two numbers, the lower one first. Raises ValueError otherwise."""
    numbers = tuple(to_number(each) for each in value) if isinstance(value, (list, tuple)) else ()
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise ValueError("must be a list of two numbers, the lower one first")
    return numbers


class RlooOptions(Section):
    """RLOO; option names as in TRL's RLOOConfig where it has them."""

    beta: Float = Field(
        default=0.05,
        ge=0,
        description=(
            "With algorithm: rloo, coefficient of the KL to the reference in an answer's "
            "reward; with 0 no reference model is loaded."
        ),
    )
    ref_model: OptPath = Field(
        default=None, description="The reference model: a folder or hub name; the initial model when empty."
    )
    epsilon: Float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="Lower clipping bound of the probability ratio of a whole answer: 1 - epsilon.",
    )
    epsilon_high: OptFloat = Field(
        default=None,
        ge=0,
        description="Upper clipping bound of that ratio: 1 + epsilon_high; epsilon when empty.",
    )
    normalize_advantages: Bool = Field(
        default=False,
        description=(
            "Normalise the advantages of a rollout to mean 0 and standard deviation 1, over all ranks."
        ),
    )
    reward_clip_range: Annotated[tuple[float, float] | None, BeforeValidator(optional(to_range))] = Field(
        default=None,
        description="Clip scores to [low, high] before the KL is subtracted; no clipping when empty.",
    )
    num_iterations: Int = Field(default=1, ge=1, description="Epochs over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Mask truncated answers out of the loss."
    )


class ReinforcePlusPlusOptions(Section):
    """REINFORCE++; options shared with GRPO and PPO have the same names."""

    group_baseline: Bool = Field(
        default=False,
        description=(
            "With algorithm: reinforce_plus_plus, subtract the mean score of a prompt's "
            "answers from each score (REINFORCE++-baseline; needs num_generations of 2 or "
            "more)."
        ),
    )
    beta: Float = Field(
        default=0.01,
        ge=0,
        description="Coefficient of the KL to the reference; with 0 no reference model is loaded.",
    )
    ref_model: OptPath = Field(
        default=None, description="The reference model: a folder or hub name; the initial model when empty."
    )
    kl_in: Annotated[str, Word("reward", "loss")] = Field(
        default="reward",
        description=(
            "reward: subtract the KL from each token's reward; loss: add it to the loss (the "
            "paper's choice with group_baseline)."
        ),
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(
        default="k1", description="Estimator of the KL; the paper uses k1 in the reward and k2 in the loss."
    )
    gamma: Float = Field(default=1.0, gt=0, le=1, description="Discount factor of rewards.")
    epsilon: Float = Field(
        default=0.2, ge=0, lt=1, description="Lower clipping bound of the probability ratio: 1 - epsilon."
    )
    epsilon_high: OptFloat = Field(
        default=None,
        ge=0,
        description="Upper clipping bound of the probability ratio: 1 + epsilon_high; epsilon when empty.",
    )
    num_iterations: Int = Field(default=1, ge=1, description="Epochs over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Mask truncated answers out of the loss."
    )


class GrpoOptions(Section):
    """GRPO and its variants; option names as in TRL's GRPOConfig where it has them."""

    beta: Float = Field(
        default=0.0,
        ge=0,
        description=(
            "With algorithm: grpo, coefficient of the KL to the reference; with 0 no "
            "reference model is loaded."
        ),
    )
    ref_model: OptPath = Field(
        default=None, description="The reference model: a folder or hub name; the initial model when empty."
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(
        default="k3", description="Estimator of the KL in the loss: k1, k2 or k3."
    )
    use_bias_correction_kl: Bool = Field(
        default=False,
        description="Multiply the KL term by the importance ratio (TRL's default, not the paper's).",
    )
    epsilon: Float = Field(
        default=0.2, ge=0, lt=1, description="Lower clipping bound of the probability ratio: 1 - epsilon."
    )
    epsilon_high: OptFloat = Field(
        default=None,
        ge=0,
        description=(
            "Upper clipping bound of the probability ratio: 1 + epsilon_high; epsilon when "
            "empty (DAPO: 0.28). With loss_type: cispo the maximum weight itself, above 1 "
            "(ScaleRL: 5.0)."
        ),
    )
    delta: OptFloat = Field(
        default=None,
        gt=1,
        description="Upper bound of the probability ratio for negative advantages; none when empty.",
    )
    loss_type: Annotated[str, Word("grpo", "dapo", "bnpo", "dr_grpo", "cispo")] = Field(
        default="dapo",
        description=(
            "Normalisation of the loss: dapo and bnpo by tokens, grpo by answers (each a mean "
            "over its tokens), dr_grpo by a constant; cispo by tokens, and it clips the "
            "importance weight instead of the objective."
        ),
    )
    scale_rewards: Annotated[str, Word("group", "batch", "none", false="none")] = Field(
        default="group",
        description=(
            "Divide advantages by the standard deviation of the group's rewards, of all "
            "rewards, or not at all."
        ),
    )
    importance_sampling_level: Annotated[str, Word("token", "sequence")] = Field(
        default="token",
        description="Probability ratio per token, or one per answer from the mean log-ratio (GSPO).",
    )
    num_iterations: Int = Field(default=1, ge=1, description="Epochs over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Mask truncated answers out of the loss (DAPO's overlong filtering)."
    )
    rollout_correction: Annotated[str, Word("none", "truncate", "mask", false="none")] = Field(
        default="none",
        description=(
            "Importance weight that corrects for the difference between the training and the "
            "sampling probabilities: truncated, masked, or none."
        ),
    )
    rollout_correction_level: Annotated[str, Word("token", "sequence")] = Field(
        default="token", description="Compute that weight per token, or per answer."
    )
    rollout_correction_cap: Float = Field(
        default=2.0, gt=0, description="Bound at which that weight is truncated, or above which it is masked."
    )
