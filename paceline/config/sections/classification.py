"""``training.classification:`` — which classes there are."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import OptInt, Section, Word, to_texts


class ClassificationOptions(Section):
    """Sequence classification, by Transformers' names."""

    labels: Annotated[tuple[str, ...], BeforeValidator(to_texts)] = Field(
        default=(),
        description="With algorithm: classification, names of the classes in the order of their numbers (id2label); from the data when empty: numbers as they are, names in alphabetical order.",
    )
    num_labels: OptInt = Field(
        default=None,
        ge=1,
        description="How many classes there are, where labels are numbers; from the data when empty.",
    )
    problem_type: Annotated[str, Word("auto", "single_label_classification", "multi_label_classification")] = Field(
        default="auto",
        description="One class a row (cross-entropy), or any number of them (binary cross-entropy of each); auto: the latter where a label is a list.",
    )
