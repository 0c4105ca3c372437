"""``training.classification:`` — the classes of sequence classification."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import OptInt, Section, Word, to_texts


class ClassificationOptions(Section):
    """Sequence classification; option names as in Transformers' configs."""

    labels: Annotated[tuple[str, ...], BeforeValidator(to_texts)] = Field(
        default=(),
        description=(
            "With algorithm: classification, the class names in the order of their ids "
            "(id2label). When empty they come from the data: numbers as they are, names in "
            "alphabetical order."
        ),
    )
    num_labels: OptInt = Field(
        default=None,
        ge=1,
        description="Number of classes if labels are numbers; from the data when empty.",
    )
    problem_type: Annotated[
        str, Word("auto", "single_label_classification", "multi_label_classification")
    ] = Field(
        default="auto",
        description=(
            "One class per row (cross-entropy), or several (binary cross-entropy per class); "
            "auto: several if a label is a list."
        ),
    )
