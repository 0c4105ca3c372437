"""Rules for preference training: unsupported combinations, and options without effect."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.parallel import in_words, places, sharding_axes, sharding_keys
from paceline.rules.rule import Context, Rule


def whole_answers(c: Context) -> Iterator[Diagnostic]:
    """strategy.pairs"""
    if not c.algorithm.scores_answers:
        return
    wrong = sharding_keys(c, sharding_axes(c, scores=c.algorithm.scalar_head))
    if wrong:
        tp = "" if c.algorithm.scalar_head else ", with tp_size"
        yield c.at(
            codes.STRATEGY_PAIRS(name=c.algorithm.name, in_words=in_words(wrong), tp=tp),
            "training.algorithm",
            *places(wrong),
        )


def sections(c: Context) -> Iterator[Diagnostic]:
    """train.algorithm_section"""
    t, own = c.config.training, c.algorithm
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


PREFERENCE_RULES: tuple[Rule, ...] = (whole_answers, sections)
