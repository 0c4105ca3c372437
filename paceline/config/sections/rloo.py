"""``training.rloo:`` — what RLOO learns of its rollouts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, optional, to_number


def to_range(value: Any) -> tuple[float, float]:
    """Two numbers, the lower one first."""
    numbers = tuple(to_number(each) for each in value) if isinstance(value, (list, tuple)) else ()
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise ValueError("must be a list of two numbers, the lower one first")
    return numbers


class RlooOptions(Section):
    """RLOO, by the names of TRL's RLOOConfig where it has one."""

    beta: Float = Field(
        default=0.05,
        ge=0,
        description="With algorithm: rloo, weight of the KL to the reference in an answer's reward; 0: no reference is kept.",
    )
    ref_model: OptPath = Field(
        default=None, description="The reference: a folder or hub name; the model that training starts from when empty."
    )
    epsilon: Float = Field(
        default=0.2, ge=0, lt=1, description="The ratio of a whole answer is clipped below 1 - epsilon."
    )
    epsilon_high: OptFloat = Field(default=None, ge=0, description="… and above 1 + epsilon_high; epsilon when empty.")
    normalize_advantages: Bool = Field(
        default=False, description="Advantages of a rollout get mean 0 and spread 1, over all ranks."
    )
    reward_clip_range: Annotated[tuple[float, float] | None, BeforeValidator(optional(to_range))] = Field(
        default=None,
        description="Scores are clipped to [low, high] before the KL is taken off; not clipped when empty.",
    )
    num_iterations: Int = Field(default=1, ge=1, description="Passes over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Learn nothing from answers that did not end by themselves."
    )
