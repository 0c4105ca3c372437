"""``training:`` — every key by its Transformers name where it has one."""

from __future__ import annotations

from paceline.config.sections.training_scale import ScaleFields
from paceline.config.sections.training_steps import (
    EvaluationFields,
    LoadingFields,
    LoggingFields,
    OptimisationFields,
    SavingFields,
)


class TrainingSection(LoggingFields, SavingFields, EvaluationFields, LoadingFields, OptimisationFields, ScaleFields):
    """How it is trained."""
