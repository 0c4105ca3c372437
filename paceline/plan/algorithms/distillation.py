"""Spec of knowledge distillation from a frozen teacher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan import codes
from paceline.plan.algorithms.base import Adapter, AlgorithmSpec, Training
from paceline.plan.job_to_check import JobToCheck
from paceline.plan.parts import OtherModel
from paceline.plan.plan import Decision, Plan

PADDING = 1024  # embeddings of one vocabulary may differ by fewer rows: families pad to different multiples


@dataclass(frozen=True)
class Distilled(AlgorithmSpec):
    """A frozen teacher runs in every step."""

    def models(self, training: Training, adapter: Adapter) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        name = self.model_named(training, "teacher")
        return "", {"teacher": OtherModel(False, name)}, (Decision("teacher", "frozen", name or "none is named"),)

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        """algorithm.no_teacher"""
        if job.own_options is None or job.own_options.teacher_model is None:
            what = "distillation learns from another model, and none is named"
            hint = f"{self.model_key('teacher')}: FOLDER or a hub name, of the student's own vocabulary"
            yield job.problem(codes.ALGORITHM_NO_TEACHER, what, "training.algorithm", hint=hint)

    def check_plan(self, plan: Plan) -> Iterator[Diagnostic]:
        """algorithm.vocabulary: token ids must mean the same to both models.

        Their tokenizers are compared later (``algorithm.teacher_tokens``).
        """
        teacher = plan.models["teacher"].shape
        if plan.shape is None or teacher is None or teacher.vocab == plan.shape.vocab:
            return
        far = abs(teacher.vocab - plan.shape.vocab) >= PADDING
        what = "teacher and student have vocabularies of their own, and next-token distributions are compared token by token"
        if not far:
            what = "the embeddings of teacher and student have unlike many rows: distributions are compared over those that both have"
        yield codes.ALGORITHM_VOCABULARY(
            what,
            f"{self.key}.teacher_model",
            f"{teacher.vocab:,} rows of the teacher's, {plan.shape.vocab:,} of the student's",
            "a teacher of the same family, with the same tokenizer",
            severity=Severity.ERROR if far else Severity.WARNING,
        )


DISTILLATION = Distilled(
    "distillation", outputs=("divergence", "nll", "correct"), named={"teacher": "teacher_model"}, lends_head=("teacher",), frozen_beside=1,
    same_tokens=("teacher",), evaluated=("eval_loss", "eval_nll", "eval_accuracy"),
)  # fmt: skip
