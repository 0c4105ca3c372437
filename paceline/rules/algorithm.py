"""Options of a user-defined algorithm, and the checks of the algorithm's spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.parallel import whole_heads
from paceline.rules.rule import Context, Rule, checked
from paceline.rules.user_options import wrong_options

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
