"""``training.ppo:`` — options of PPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, Word


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
