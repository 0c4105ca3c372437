"""Options of a user-defined algorithm, and the checks of the algorithm's spec."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.base import Context, Rule, checked
from paceline.rules.sharding import whole_heads

_KEY, _ALGORITHM = "training.algorithm_options", "training.algorithm"


def options(c: Context) -> Iterator[Diagnostic]:
    """algorithm.options"""
    given, spec = c.config.training.algorithm_options, c.algorithm
    if given and not spec.own:
        what = "algorithm_options go to an algorithm of your own only"
        hint = "algorithm: module:SPEC, or the section of the algorithm's own name"
        yield c.problem(codes.ALGORITHM_OPTIONS, what, _KEY, _ALGORITHM, hint=hint, severity=Severity.WARNING)
        return
    for name, value in given.items():
        found, key = f"{name}: {value!r}", f"{_KEY}.{name}"
        if name not in spec.options:
            near = difflib.get_close_matches(name, spec.options, n=1)
            hint = (
                f"did you mean '{near[0]}'?"
                if near
                else f"one of {', '.join(spec.options) or 'none: it has none'}"
            )
            yield c.problem(
                codes.ALGORITHM_OPTIONS, f"{spec.name} has no such option", key, found=found, hint=hint
            )
        elif not _fits(value, spec.options[name]):
            what = f"{spec.name} takes another kind of value there"
            yield c.problem(
                codes.ALGORITHM_OPTIONS,
                what,
                key,
                found=found,
                hint=f"such as {name}: {spec.options[name]!r}",
            )


def _fits(value: object, default: object) -> bool:
    """Whether ``value`` has the type of ``default``; an int fits a float, and anything fits None."""
    if default is None or (isinstance(default, float) and type(value) is int):
        return True
    return type(value) is type(default)


def of_the_spec(c: Context) -> Iterable[Diagnostic]:
    """Run the checks of the algorithm's own spec, which may trust the types of its options."""
    wrong = any(finding.severity is Severity.ERROR for finding in options(c))
    return () if wrong else checked(c, c.algorithm, _ALGORITHM)


ALGORITHM_RULES: tuple[Rule, ...] = (options, of_the_spec, whole_heads)
