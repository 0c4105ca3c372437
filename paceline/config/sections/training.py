"""``training:`` — all keys, named as in Transformers where it has them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.extensions import OwnFields
from paceline.config.sections.training_scale import ScaleFields
from paceline.config.sections.training_steps import (
    EvaluationFields,
    LoadingFields,
    LoggingFields,
    OptimisationFields,
    SavingFields,
)
from paceline.config.sections.types import Bool, OptFloat, Section, Word, misfit, to_texts
from paceline.core.json_types import Json


def to_patterns(value: Json) -> tuple[str, ...]:
    """Convert a list of patterns of parameters' names, or one pattern. Raises PydanticCustomError."""
    patterns = (value.strip(),) if isinstance(value, str) and value.startswith("^") else to_texts(value)
    for pattern in patterns:
        if not pattern.strip("*?. "):
            raise misfit(f"must name parts of the model, not {pattern or 'an empty text'!r}")
        try:
            re.compile(pattern if pattern.startswith("^") else "")
        except re.error as error:
            raise misfit(f"is no regular expression ({pattern}): {error}") from None
    return patterns


Patterns = Annotated[tuple[str, ...], BeforeValidator(to_patterns)]


class FreezingFields(Section):
    """What stays as loaded."""

    freeze: Patterns = Field(
        default=(),
        description=(
            "Parts of the model that are not trained: names of modules or parameters, whose leading parts may"
            " be left out, with shell wildcards and slices: [embed_tokens, 'layers[:4]', '*norm*'], where"
            " 'layers[/8]' is the last of each eighth; ^ begins a regular expression for full names."
        ),
    )
    unfreeze: Patterns = Field(
        default=(),
        description=(
            "Parts that are trained although freeze names them; without freeze only they are trained. Names"
            " as in freeze."
        ),
    )
    learning_rates: PartRates | None = Field(
        default=None, description="Other learning rates for the vision tower and the projector."
    )


class PartRates(Section):
    """Peak learning rates of single parts of a model that reads images, with the same schedule."""

    vision: OptFloat = Field(
        default=None, ge=0, description="Of the vision tower; training.learning_rate when empty."
    )
    projector: OptFloat = Field(
        default=None,
        ge=0,
        description="Of the layers between tower and text; training.learning_rate when empty.",
    )


class ExpertFields(Section):
    """Balance of a mixture's experts."""

    router_aux_loss_coef: OptFloat = Field(
        default=None,
        ge=0,
        le=1e3,
        description=(
            "Coefficient of the load-balancing loss of a mixture's experts; 0: none. When empty that of the"
            " model's config if its output_router_logits is true, else none."
        ),
    )
    freeze_router: Bool = Field(
        default=False, description="Leave a mixture's routers as loaded; everything else is trained."
    )
    router_aux_loss_scope: Annotated[str, Word("document", "micro_batch")] = Field(
        default="document",
        description=(
            "What the balance loss is computed over: each document (the same under every split of rows), or"
            " all tokens of a micro-batch, as in Transformers and TRL (depends on the split)."
        ),
    )


class TrainingSection(
    LoggingFields,
    SavingFields,
    EvaluationFields,
    LoadingFields,
    OptimisationFields,
    FreezingFields,
    ExpertFields,
    ScaleFields,
    OwnFields,
):
    """Training: algorithm, strategy, batch, precision, optimizer, evaluation, saving and logging."""
