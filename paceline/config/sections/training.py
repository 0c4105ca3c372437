"""``training:`` — all keys, named as in Transformers where it has them."""

from __future__ import annotations

from paceline.config.sections.extensions import OwnFields
from paceline.config.sections.training_experts import ExpertFields
from paceline.config.sections.training_scale import ScaleFields
from paceline.config.sections.training_steps import (
    EvaluationFields,
    LoadingFields,
    LoggingFields,
    OptimisationFields,
    SavingFields,
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
