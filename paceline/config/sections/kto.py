"""``training.kto:`` — what KTO learns of labelled answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.types import Float, OptPath, Section, Word


class KtoOptions(Section):
    """KTO, by the names of TRL's KTOConfig."""

    beta: Float = Field(
        default=0.1, gt=0, description="With algorithm: kto, how closely the policy is held to the reference."
    )
    loss_type: Annotated[str, Word("kto", "apo_zero_unpaired")] = Field(
        default="kto",
        description="kto weighs an answer's log-ratio against the batch's KL; apo_zero_unpaired against 0, which spares two forwards.",
    )
    desirable_weight: Float = Field(
        default=1.0,
        ge=0,
        description="Weight of answers whose label is true; with unlike many of both, see docs/preference.md.",
    )
    undesirable_weight: Float = Field(default=1.0, ge=0, description="Weight of answers whose label is false.")
    ref_model: OptPath = Field(
        default=None,
        description="The reference model: a folder or a hub name; the model that training starts from when empty.",
    )
