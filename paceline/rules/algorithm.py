"""Options of a user-defined algorithm, and the checks of the algorithm's spec."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.json_types import Json
from paceline.rules import codes
from paceline.rules.parallel import whole_heads
from paceline.rules.rule import Context, Rule, checked

_KEY, _ALGORITHM = "training.algorithm_options", "training.algorithm"


def options(c: Context) -> Iterator[Diagnostic]:
    """algorithm.options"""
    given, spec = c.config.training.algorithm_options, c.algorithm
    if given and not spec.own:
        what = "algorithm_options are passed only to your own algorithm (module:SPEC)"
        hint = "set algorithm: module:SPEC, or use the section named after the built-in algorithm"
        yield c.problem(codes.ALGORITHM_OPTIONS, what, _KEY, _ALGORITHM, hint=hint, severity=Severity.WARNING)
        return
    yield from wrong_options(c, codes.ALGORITHM_OPTIONS, spec.name, _KEY, spec.options)


def of_the_spec(c: Context) -> Iterable[Diagnostic]:
    """Run the checks of the algorithm's own spec, which may trust the types of its options."""
    wrong = any(finding.severity is Severity.ERROR for finding in options(c))
    return () if wrong else checked(c, c.algorithm, _ALGORITHM)


ALGORITHM_RULES: tuple[Rule, ...] = (options, of_the_spec, whole_heads)


def wrong_options(
    c: Context, code: Code, name: str, key: str, declared: Mapping[str, Json]
) -> Iterator[Diagnostic]:
    """Yield an error for each option under ``key`` that is not ``declared`` (option -> default) by the spec
    ``name``, or not of its default's type.
    """
    given = c.value(key)
    assert isinstance(given, Mapping)
    for option, value in given.items():
        found, path = f"{option}: {value!r}", f"{key}.{option}"
        if option not in declared:
            near = difflib.get_close_matches(option, declared, n=1)
            known = f"one of {', '.join(declared) or 'none: it has none'}"
            hint = f"did you mean '{near[0]}'?" if near else known
            yield c.problem(code, f"{name} has no such option", path, found=found, hint=hint)
        elif not _fits(value, declared[option]):
            what, hint = (
                f"{name} expects another type of value there",
                f"such as {option}: {declared[option]!r}",
            )
            yield c.problem(code, what, path, found=found, hint=hint)


def _fits(value: Json, default: Json) -> bool:
    """Whether ``value`` has the type of ``default``; an int fits a float, and anything fits None."""
    if default is None or (isinstance(default, float) and type(value) is int):
        return True
    return type(value) is type(default)
