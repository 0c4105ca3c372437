"""What reward models and DPO cannot be combined with, and options of theirs that would do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.rules.base import Context, Rule
from paceline.config.rules.cuts import cutting_keys, in_words, places
from paceline.config.rules.strategy import engine_of
from paceline.core.diagnostics import Diagnostic, Severity

_LEARNT_FROM_PAIRS = ("reward", "dpo")


def pairs(c: Context) -> Iterator[Diagnostic]:
    """strategy.pairs"""
    t = c.config.training
    if t.algorithm not in _LEARNT_FROM_PAIRS:
        return
    whole_layers = t.algorithm == "reward" or engine_of(c) != "fsdp"
    wrong = cutting_keys(c, ("pp", "cp", "tp") if whole_layers else ("pp", "cp"))
    if wrong:
        tp = ", with tp_size" if t.algorithm == "dpo" else ""
        yield c.problem(
            "strategy.pairs",
            f"{t.algorithm} compares the two answers of a pair as wholes, and {in_words(wrong)} would cut them apart",
            "training.algorithm",
            *places(wrong),
            hint=f"distributed_strategy: ddp, zero1 to zero3, or fsdp{tp}",
        )


def options(c: Context) -> Iterator[Diagnostic]:
    """dpo.reference, dpo.label_smoothing, train.algorithm_section"""
    t = c.config.training
    for name in _LEARNT_FROM_PAIRS:
        if getattr(t, name) is not None and t.algorithm != name:
            yield c.problem(
                "train.algorithm_section",
                f"training.{name} says how algorithm: {name} learns, and this run's is {t.algorithm}",
                f"training.{name}",
                "training.algorithm",
                hint=f"algorithm: {name}, or remove the section",
                severity=Severity.WARNING,
            )
    if t.algorithm != "dpo" or t.dpo is None:
        return
    if t.dpo.reference_free and (t.dpo.ref_model or t.dpo.precompute_ref_log_probs):
        key = "ref_model" if t.dpo.ref_model else "precompute_ref_log_probs"
        yield c.problem(
            "dpo.reference",
            "without a reference there is nothing to ask",
            "training.dpo.reference_free",
            f"training.dpo.{key}",
            hint=f"reference_free: false, or remove {key}",
        )
    if t.dpo.label_smoothing and t.dpo.loss_type not in ("sigmoid", "robust"):
        yield c.problem(
            "dpo.label_smoothing",
            f"the loss {t.dpo.loss_type} has no flipped labels in it",
            "training.dpo.label_smoothing",
            "training.dpo.loss_type",
            hint="label_smoothing: 0, or loss_type: sigmoid or robust",
        )


PREFERENCE_RULES: tuple[Rule, ...] = (pairs, options)
