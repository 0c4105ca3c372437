"""``training.reinforce_plus_plus:`` — options of REINFORCE++."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, Word


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
