"""Spec of KTO: answers labelled one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.algorithms.preference import KtoOptions
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.algorithms.base import Adapter, AlgorithmSpec, Training, live_reference
from paceline.plan.job_to_check import JobToCheck
from paceline.plan.parts import OtherModel
from paceline.plan.plan import Decision


@dataclass(frozen=True)
class Kto(AlgorithmSpec):
    """The reference runs in every step on the answers and, for the KL, on answers to other prompts."""

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        return live_reference(self, training, adapter)

    def forwards_of(self, training: Training) -> int:
        """Return 0 for a loss without a KL: nothing is asked of answers to other prompts."""
        return self.further_forwards if self.options_of(training)["loss_type"] == "kto" else 0

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        t = job.config.training
        rows = t.per_device_train_batch_size * t.gradient_accumulation_steps * (job.world_size or 2)
        own = job.own_options
        measured = not isinstance(own, KtoOptions) or own.loss_type == "kto"
        if rows == 1 and measured and not job.config.data.packing:
            keys = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps")
            yield job.at(codes.KTO_ONE_ROW(), *keys)


KTO = Kto(
    "kto",
    "labelled",
    outputs=("logprobs",),
    whole_answers=True,
    disable_dropout=True,
    named={"reference": "ref_model"},
    same_tokens=("reference",),
    frozen_beside=1,
    further_forwards=2,
    evaluated=(
        "eval_loss",
        "eval_kl",
        "eval_rewards/chosen",
        "eval_rewards/rejected",
        "eval_rewards/margins",
        "eval_logps/chosen",
        "eval_logps/rejected",
    ),
)
