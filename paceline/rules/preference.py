"""Rules for preference training: unsupported combinations, and options without effect."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.sections.preference import DpoOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.base import Context, Rule
from paceline.rules.sharding import in_words, places, sharding_axes, sharding_keys


def whole_answers(c: Context) -> Iterator[Diagnostic]:
    """strategy.pairs"""
    if not c.algorithm.scores_answers:
        return
    wrong = sharding_keys(c, sharding_axes(c, scores=c.algorithm.scalar_head))
    if wrong:
        tp = "" if c.algorithm.scalar_head else ", with tp_size"
        yield c.problem(
            codes.STRATEGY_PAIRS,
            f"{c.algorithm.name} scores complete answers, which {in_words(wrong)} would split",
            "training.algorithm",
            *places(wrong),
            hint=f"set distributed_strategy: ddp, zero1 to zero3, or fsdp{tp}",
        )


def options(c: Context) -> Iterator[Diagnostic]:
    """dpo.reference, dpo.label_smoothing, train.algorithm_section"""
    t, own = c.config.training, c.algorithm
    # Sections of other algorithms
    others = (spec.name for spec in c.algorithms if not spec.on_policy and spec.name != own.name)
    for name in others:
        if getattr(t, name, None) is not None:
            yield c.problem(
                codes.TRAIN_ALGORITHM_SECTION,
                f"training.{name} configures algorithm: {name}, but this run's algorithm is {t.algorithm}",
                f"training.{name}",
                "training.algorithm",
                hint=f"set algorithm: {name}, or remove the section",
                severity=Severity.WARNING,
            )
    # DPO's own options
    dpo = c.own_options
    if not isinstance(dpo, DpoOptions):
        return
    if dpo.reference_free and (dpo.ref_model or dpo.precompute_ref_log_probs):
        key = "ref_model" if dpo.ref_model else "precompute_ref_log_probs"
        yield c.problem(
            codes.DPO_REFERENCE,
            "there is no reference model to use",
            "training.dpo.reference_free",
            f"training.dpo.{key}",
            hint=f"set reference_free: false, or remove {key}",
        )
    if dpo.label_smoothing and dpo.loss_type not in ("sigmoid", "robust"):
        yield c.problem(
            codes.DPO_LABEL_SMOOTHING,
            f"the loss {dpo.loss_type} does not model flipped labels",
            "training.dpo.label_smoothing",
            "training.dpo.loss_type",
            hint="set label_smoothing: 0, or loss_type: sigmoid or robust",
        )


PREFERENCE_RULES: tuple[Rule, ...] = (whole_answers, options)
