"""Spec of knowledge distillation from a frozen teacher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.distillation import DistillationOptions
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

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        name = self.model_named(training, "teacher")
        decisions, own, answers = (
            [Decision("teacher", "frozen", name or "none is named")],
            self.own_fraction(training),
            self.generation(training),
        )
        if answers is not None:
            how = (
                f"sampled at temperature {answers.temperature:g}"
                if answers.temperature
                else "its likeliest tokens"
            )
            why = f"written by the student in each step, {how}, up to {answers.max_completion_length} tokens"
            decisions.append(Decision("answers", f"{own:.0%} of rows", why))
        return "", {"teacher": OtherModel(False, name)}, tuple(decisions)

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        """algorithm.no_teacher, distillation.lmbda_off"""
        own = job.own_options
        o = own if isinstance(own, DistillationOptions) else DistillationOptions()
        if o.teacher_model is None:
            what = "distillation learns from another model, and none is named"
            hint = f"{self.model_key('teacher')}: FOLDER or a hub name, of the student's own vocabulary"
            yield job.problem(codes.ALGORITHM_NO_TEACHER, what, "training.algorithm", hint=hint)
        if not self.own_fraction(job.config.training):
            defaults = DistillationOptions()
            set_here = {"max_completion_length": o.max_completion_length != defaults.max_completion_length}
            set_here["sampling_temperature"] = o.sampling_temperature != defaults.sampling_temperature
            for key in (name for name, changed in set_here.items() if changed):
                what = "it says how the student writes answers, and with lmbda: 0 all answers are the data's"
                keys, hint = (
                    (
                        f"{self.key}.{key}",
                        f"{self.key}.{self.own_answers}",
                    ),
                    "lmbda: 0.5, or remove it",
                )
                yield job.problem(
                    codes.DISTILLATION_LMBDA_OFF, what, *keys, hint=hint, severity=Severity.WARNING
                )

    def check_plan(self, plan: Plan) -> Iterator[Diagnostic]:
        """algorithm.vocabulary: token ids must mean the same to both models.

        Their tokenizers are compared later (``algorithm.teacher_tokens``).
        """
        teacher = plan.models["teacher"].shape
        if plan.shape is None or teacher is None or teacher.vocab == plan.shape.vocab:
            return
        far = abs(teacher.vocab - plan.shape.vocab) >= PADDING
        what = (
            "teacher and student have vocabularies of their own, and next-token distributions are compared"
            " token by token"
        )
        if not far:
            what = (
                "the embeddings of teacher and student have unlike many rows: distributions are compared over"
                " those that both have"
            )
        yield codes.ALGORITHM_VOCABULARY(
            what,
            f"{self.key}.teacher_model",
            f"{teacher.vocab:,} rows of the teacher's, {plan.shape.vocab:,} of the student's",
            "a teacher of the same family, with the same tokenizer",
            severity=Severity.ERROR if far else Severity.WARNING,
        )


DISTILLATION = Distilled(
    "distillation",
    outputs=("divergence", "nll", "correct"),
    named={"teacher": "teacher_model"},
    lends_head=("teacher",),
    frozen_beside=1,
    same_tokens=("teacher",),
    own_answers="lmbda",
    beside=("lmbda", "max_completion_length", "sampling_temperature"),
    evaluated=("eval_loss", "eval_nll", "eval_accuracy"),
)
