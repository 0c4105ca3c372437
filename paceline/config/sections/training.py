"""``training:`` — all keys, named as in Transformers where it has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.sections.extensions import OwnFields
from paceline.config.sections.training_scale import ScaleFields
from paceline.config.sections.training_steps import (
    EvaluationFields,
    LoadingFields,
    LoggingFields,
    OptimisationFields,
    SavingFields,
)
from paceline.config.sections.types import Bool, OptFloat, Section, Word


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
    ExpertFields,
    ScaleFields,
    OwnFields,
):
    """Training: algorithm, strategy, batch, precision, optimizer, evaluation, saving and logging."""
