"""``training.rloo:`` — options of RLOO."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Bool, Float, Int, OptFloat, OptPath, Section, optional, to_number
from paceline.core.json_types import Json


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
