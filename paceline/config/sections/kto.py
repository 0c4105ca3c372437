"""``training.kto:`` — options of KTO (Kahneman-Tversky optimisation)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Float, OptPath, Section, Word


class KtoOptions(Section):
    """KTO; option names as in TRL's KTOConfig."""

    beta: Float = Field(
        default=0.1,
        gt=0,
        description=(
            "With algorithm: kto, strength of the KL constraint: how closely the policy stays "
            "to the reference."
        ),
    )
    loss_type: Annotated[str, Word("kto", "apo_zero_unpaired")] = Field(
        default="kto",
        description=(
            "kto compares an answer's log-ratio with the batch's KL estimate; "
            "apo_zero_unpaired with 0, which saves two forward passes."
        ),
    )
    desirable_weight: Float = Field(
        default=1.0,
        ge=0,
        description="Loss weight of answers labelled true; for unbalanced labels see docs/preference.md.",
    )
    undesirable_weight: Float = Field(default=1.0, ge=0, description="Loss weight of answers labelled false.")
    ref_model: OptPath = Field(
        default=None,
        description="The reference model: a folder or a hub name; the initial model when empty.",
    )
