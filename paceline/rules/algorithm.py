"""Rules for the algorithm: its options and sections, its spec's own checks, and strategies that split it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.plugins.tables import ALGORITHMS
from paceline.rules import codes
from paceline.rules.parallel import (
    WHOLE,
    in_words,
    places,
    sharding_axes,
    sharding_keys,
    whole_again,
    whole_heads,
)
from paceline.rules.rule import Context, Rule, checked, wrong_options

_KEY, _ALGORITHM = "training.algorithm_options", "training.algorithm"


def options(c: Context) -> Iterator[Diagnostic]:
    """algorithm.options"""
    spec = c.algorithm
    if c.training.algorithm_options and not spec.own:
        yield c.problem(
            codes.ALGORITHM_OPTIONS,
            "algorithm_options are passed only to your own algorithm (module:SPEC)",
            _KEY,
            _ALGORITHM,
            hint="set algorithm: module:SPEC, or use the section named after the built-in algorithm",
            severity=Severity.WARNING,
        )
        return
    yield from wrong_options(c, codes.ALGORITHM_OPTIONS, spec.name, _KEY, spec.options)


def idle_options(c: Context) -> Iterator[Diagnostic]:
    """algorithm.option_idle"""
    spec = c.algorithm
    section = ALGORITHMS.section(spec.name)
    if section is None:
        return
    values, defaults = spec.options_of(c.training), section().model_dump(mode="json")
    for option, (other, value) in spec.idle_without.items():
        key = f"{spec.key}.{option}"
        acts = values[other] == value if value else values[other]
        if not acts and values[option] != defaults[option]:
            needs = f"{other}: {value}" if value else other
            yield c.at(codes.ALGORITHM_OPTION_IDLE(needs=needs), key, f"{spec.key}.{other}")


def of_the_spec(c: Context) -> Iterable[Diagnostic]:
    """Run the checks of the algorithm's own spec, which may trust the types of its options."""
    wrong = any(finding.severity is Severity.ERROR for finding in options(c))
    return () if wrong else checked(c, c.algorithm, _ALGORITHM)


def whole_answers(c: Context) -> Iterator[Diagnostic]:
    """strategy.pairs"""
    if not c.algorithm.scores_answers:
        return
    wrong = sharding_keys(c, sharding_axes(c, scores=c.algorithm.scalar_head))
    if wrong:
        yield c.at(
            codes.STRATEGY_PAIRS(
                name=c.algorithm.name,
                in_words=in_words(wrong),
                hint=whole_again(wrong, WHOLE, frozenset() if c.algorithm.scalar_head else frozenset({"tp"})),
            ),
            "training.algorithm",
            *places(wrong),
        )


def prompts(c: Context) -> Iterator[Diagnostic]:
    """data.retrieval_prompt"""
    data = c.config.data
    given = {"data.query_prompt": data.query_prompt, "data.document_prompt": data.document_prompt}
    for key in (key for key, text in given.items() if text and not c.algorithm.loaded_by):
        yield c.at(codes.DATA_RETRIEVAL_PROMPT(name=c.algorithm.name), key, "training.algorithm")


def sections(c: Context) -> Iterator[Diagnostic]:
    """train.algorithm_section"""
    own = c.algorithm
    others = (spec.name for spec in c.algorithms if not spec.on_policy and spec.name != own.name)
    for name in others:
        if getattr(c.training, name, None) is not None:
            yield c.problem(
                codes.TRAIN_ALGORITHM_SECTION,
                f"training.{name} configures algorithm: {name}, but this run's algorithm is"
                f" {c.training.algorithm}",
                f"training.{name}",
                "training.algorithm",
                hint=f"set algorithm: {name}, or remove the section",
                severity=Severity.WARNING,
            )


ALGORITHM_RULES: tuple[Rule, ...] = (
    options,
    idle_options,
    of_the_spec,
    whole_heads,
    whole_answers,
    prompts,
    sections,
)
