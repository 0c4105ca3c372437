"""Specs for answers that were compared or labelled: reward model, DPO, KTO, and those without a reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.algorithms.preference import DpoOptions, KtoOptions
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.algorithms.spec import Adapter, AlgorithmSpec, Training, live_reference
from paceline.plan.plan import Decision, JobToCheck, OtherModel


@dataclass(frozen=True)
class DpoSpec(AlgorithmSpec):
    """The reference runs in training, before it (cached), or not at all."""

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        options = self.options_of(training)
        if options.get("reference_free"):
            return (
                "",
                {},
                (
                    Decision(
                        "reference",
                        "none",
                        f"{self.key}.reference_free: all answers are treated as equally likely",
                    ),
                ),
            )
        model = self.model_named(training, "reference")
        source = f"{self.key}.ref_model: {model}" if model else "the model that training starts from"
        if options.get("precompute_ref_log_probs"):
            return (
                "cached",
                {},
                (
                    Decision(
                        "reference",
                        "cached",
                        f"{source}, computed once before training and kept in the data cache; no reference"
                        " is loaded during training",
                    ),
                ),
            )
        more = f"; {self.key}.precompute_ref_log_probs: true saves its memory and its forward"
        return live_reference(self, training, adapter, more)

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        options, key = job.own_options, self.key
        if not isinstance(options, DpoOptions):
            return
        if options.reference_free and (options.ref_model or options.precompute_ref_log_probs):
            unused = "ref_model" if options.ref_model else "precompute_ref_log_probs"
            yield job.at(codes.DPO_REFERENCE(unused=unused), f"{key}.reference_free", f"{key}.{unused}")
        if options.label_smoothing and options.loss_type not in ("sigmoid", "robust"):
            yield job.at(
                codes.DPO_LABEL_SMOOTHING(loss_type=options.loss_type),
                f"{key}.label_smoothing",
                f"{key}.loss_type",
            )


REWARD = AlgorithmSpec(
    "reward",
    "pairs",
    trains="reward",
    outputs=("scores",),
    disable_dropout=True,
    evaluated=(
        "eval_loss",
        "eval_accuracy",
        "eval_margin",
        "eval_reward_chosen",
        "eval_reward_rejected",
        "eval_reward_mean",
        "eval_reward_std",
        "eval_calibration_error",
    ),
)
_STATISTICS = (
    "eval_loss",
    "eval_rewards/chosen",
    "eval_rewards/rejected",
    "eval_rewards/accuracies",
    "eval_rewards/margins",
    "eval_logps/chosen",
    "eval_logps/rejected",
)
DPO = DpoSpec(
    "dpo",
    "pairs",
    outputs=("logprobs",),
    named={"reference": "ref_model"},
    same_tokens=("reference",),
    frozen_beside=1,
    disable_dropout=True,
    idle_without={"mean_of_means": ("rpo_alpha", "")},
    beside=("precompute_ref_log_probs", "precompute_ref_batch_size", "loss_weights"),
    evaluated=_STATISTICS,
)
CPO = AlgorithmSpec("cpo", "pairs", outputs=("logprobs",), disable_dropout=True, evaluated=_STATISTICS)
ORPO = AlgorithmSpec(
    "orpo",
    "pairs",
    outputs=("logprobs",),
    disable_dropout=True,
    evaluated=(*_STATISTICS, "eval_log_odds_ratio", "eval_log_odds_chosen"),
)
SIMPO = AlgorithmSpec("simpo", "pairs", outputs=("logprobs",), disable_dropout=True, evaluated=_STATISTICS)


@dataclass(frozen=True)
class KtoSpec(AlgorithmSpec):
    """The reference runs in every step on the answers and, for the KL, on answers to other prompts."""

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        return live_reference(self, training, adapter)

    def forwards_of(self, training: Training) -> int:
        """Return 0 for a loss without a KL, which needs no answers to other prompts."""
        return self.further_forwards if self.options_of(training)["loss_type"] == "kto" else 0

    def check(self, job: JobToCheck) -> Iterator[Diagnostic]:
        t = job.config.training
        rows = t.per_device_train_batch_size * t.gradient_accumulation_steps * (job.world_size or 2)
        options = job.own_options
        measured = not isinstance(options, KtoOptions) or options.loss_type == "kto"
        if rows == 1 and measured and not job.config.data.packing:
            keys = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps")
            yield job.at(codes.KTO_ONE_ROW(), *keys)


KTO = KtoSpec(
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
