"""The options of a user-defined strategy or algorithm: those that its spec declares, with their types."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from paceline.core.diagnostics import Code, Diagnostic
from paceline.core.json_types import Json
from paceline.rules.rule import Context


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
