"""``training.ppo:`` — what PPO learns of its rollouts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, Word


class PpoOptions(Section):
    """PPO, by the names of TRL's PPOConfig where it has one (trlX's or TRL 0.11's for what TRL dropped)."""

    num_ppo_epochs: Int = Field(default=4, ge=1, description="With algorithm: ppo, passes over each rollout.")
    kl_coef: Float = Field(
        default=0.05, ge=0, description="Weight of the KL to the reference; 0: no reference is kept."
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(default="k1", description="Estimator of the KL.")
    kl_in: Annotated[str, Word("reward", "loss")] = Field(
        default="reward", description="The KL is taken off each token's reward, or added to the policy's loss."
    )
    adap_kl_ctrl: Bool = Field(
        default=False, description="Move kl_coef after each rollout so that an answer's KL comes near target."
    )
    target: Float = Field(default=6.0, gt=0, description="The KL of an answer that adap_kl_ctrl aims at.")
    horizon: Int = Field(
        default=10000, ge=1, description="Answers over which adap_kl_ctrl may move kl_coef by a fifth."
    )
    ref_model: OptPath = Field(
        default=None, description="The reference: a folder or hub name; the model that training starts from when empty."
    )
    value_model: OptPath = Field(
        default=None,
        description="What the value model starts from: a folder or hub name; when empty the reward model, without one the model that training starts from.",
    )
    cliprange: Float = Field(default=0.2, gt=0, lt=1, description="The ratio is clipped to 1 ± cliprange.")
    cliprange_value: OptFloat = Field(
        default=0.2, gt=0, description="A value may move so far from the rollout's before its loss is clipped; null: as far as it likes."
    )  # fmt: skip
    vf_coef: Float = Field(default=0.1, gt=0, description="Weight of the value model's loss.")
    gamma: Float = Field(default=1.0, gt=0, le=1, description="Discount of later rewards.")
    lam: Float = Field(
        default=0.95, ge=0, le=1, description="λ of generalised advantage estimation: 1 trusts rewards, 0 the values."
    )
    whiten_advantages: Bool = Field(
        default=True, description="Advantages of a rollout get mean 0 and spread 1, over all ranks."
    )
    whiten_rewards: Bool = Field(default=False, description="Rewards of a rollout's tokens get spread 1.")
    missing_eos_penalty: OptFloat = Field(
        default=None, ge=0, description="Taken off the score of an answer that did not end by itself."
    )
    cliprange_reward: OptFloat = Field(
        default=None, gt=0, description="Scores are clipped to ± this; not clipped when empty."
    )
