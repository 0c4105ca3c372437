"""``training.reinforce_plus_plus:`` — what REINFORCE++ learns of its rollouts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, Word


class ReinforcePlusPlusOptions(Section):
    """REINFORCE++, by the names of GRPO and PPO for what they share."""

    group_baseline: Bool = Field(
        default=False,
        description="With algorithm: reinforce_plus_plus, the mean score of a prompt's answers is taken off each (REINFORCE++-baseline: num_generations of 2 and more).",
    )
    beta: Float = Field(default=0.01, ge=0, description="Weight of the KL to the reference; 0: no reference is kept.")
    ref_model: OptPath = Field(
        default=None, description="The reference: a folder or hub name; the model that training starts from when empty."
    )
    kl_in: Annotated[str, Word("reward", "loss")] = Field(
        default="reward",
        description="The KL is taken off each token's reward, or added to the loss (the paper's choice with group_baseline).",
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(
        default="k1", description="Estimator of the KL: k1 in the reward, k2 in the loss are the paper's."
    )
    gamma: Float = Field(default=1.0, gt=0, le=1, description="Discount of later rewards.")
    epsilon: Float = Field(default=0.2, ge=0, lt=1, description="The ratio is clipped below 1 - epsilon.")
    epsilon_high: OptFloat = Field(default=None, ge=0, description="… and above 1 + epsilon_high; epsilon when empty.")
    num_iterations: Int = Field(default=1, ge=1, description="Passes over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Learn nothing from answers that did not end by themselves."
    )
