"""Spec of sequence classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.algorithms.classification import ClassificationOptions
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.algorithms.base import AlgorithmSpec, Training
from paceline.plan.job_to_check import JobToCheck


@dataclass(frozen=True)
class Classifying(AlgorithmSpec):
    """A head with one logit per class, read at the last token."""

    def head_outputs(self, training: Training) -> int:
        """Return the number of classes if the config says; 1 if the data decides."""
        options = ClassificationOptions.model_validate(self.options_of(training))
        return len(options.labels) or options.num_labels or 1

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        """classification.labels"""
        own = job.own_options
        if not isinstance(own, ClassificationOptions) or not own.labels:
            return
        twice = sorted({name for name in own.labels if own.labels.count(name) > 1})
        if twice or (own.num_labels is not None and own.num_labels != len(own.labels)):
            what = (
                f"labels contains {', '.join(twice)} twice"
                if twice
                else "labels and num_labels differ in number"
            )
            keys = (f"{self.key}.labels", f"{self.key}.num_labels")
            yield job.problem(
                codes.CLASSIFICATION_LABELS, what, *keys, hint="list each name once, and remove num_labels"
            )


CLASSIFICATION = Classifying(
    "classification",
    "classified",
    trains="classifier",
    outputs=("classes",),
    whole_answers=True,
    evaluated=("eval_loss", "eval_accuracy", "eval_macro_f1"),
)
