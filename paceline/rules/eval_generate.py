"""Rules for answers at evaluations: ``training.eval_generate`` and its metrics."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.registries.evaluation_metrics import ANSWER_METRICS, METRIC_GROUPS, SEVERAL_ANSWERS
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.parallel import in_words, places, sharding_axes, sharding_keys
from paceline.rules.rule import Context, Rule

_KEY, _METRICS, _ROWS = "training.eval_generate", "training.eval_metrics", "training.eval_generate_rows"


def needs(c: Context) -> Iterator[Diagnostic]:
    """train.eval_generate, strategy.eval_generate"""
    t, spec = c.config.training, c.algorithm
    if not t.eval_generate:
        for key in (_METRICS, _ROWS):
            if c.given(key):
                yield c.problem(
                    codes.TRAIN_EVAL_GENERATE,
                    "evaluations generate no answers, so this has no effect",
                    key,
                    found="eval_generate: false",
                    hint="set eval_generate: true, or remove it",
                    severity=Severity.WARNING,
                )
        return
    if t.eval_strategy == "no" and not t.eval_on_start:
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            "answers are generated at evaluations, but this run does not evaluate",
            _KEY,
            "training.eval_strategy",
            found="eval_strategy: no",
            hint="eval_strategy: steps",
        )
    if spec.scalar_head or not spec.row_kind.expected:
        what = "has no head for words" if spec.scalar_head else f"trains on {spec.row_kind.words}"
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            f"the algorithm {spec.name} {what}, so there are no answers to compare",
            _KEY,
            "training.algorithm",
            hint="set eval_generate: false",
        )
    wrong = sharding_keys(c, sharding_axes(c, scores=False))
    if wrong:
        yield c.at(codes.STRATEGY_EVAL_GENERATE(in_words=in_words(wrong)), _KEY, *places(wrong))


def metrics(c: Context) -> Iterator[Diagnostic]:
    """train.eval_metrics"""
    known = (*ANSWER_METRICS, *METRIC_GROUPS)
    names = c.config.training.eval_metrics
    if c.config.training.eval_generate and not names:
        yield c.problem(
            codes.TRAIN_EVAL_METRICS, "no metric is named", _METRICS, hint=f"one of {', '.join(known)}"
        )
    for name in names:
        if SEVERAL_ANSWERS.fullmatch(name):
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"{name} needs several answers to a row, an evaluation during training writes one",
                _METRICS,
                hint="paceline evaluate RUN --metrics pass@4 --samples 4 measures checkpoints by it",
            )
        elif name not in known and ":" not in name:
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"there is no metric named '{name}'",
                _METRICS,
                hint=f"{', '.join(known)}, or your own as module:function",
            )


EVAL_GENERATE_RULES: tuple[Rule, ...] = (needs, metrics)
