"""Value kinds of the options of optimizers and schedules, checked without importing their libraries."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping

from paceline.core.json_types import Json

#: An option's kind: number, size (a number ≥ 0), whole, switch, pair, three (numbers),
#: betas (two numbers in [0, 1)), or a tuple of valid words.
Kind = str | tuple[str, ...]

_TEXTS = {
    "number": "a number",
    "size": "a number of 0 or more",
    "whole": "a whole number",
    "count": "a whole number from 1",
    "switch": "true or false",
    "pair": "two numbers",
    "three": "three numbers",
    "betas": "two numbers from 0 to below 1",
}


def misfits(options: Mapping[str, Json], kinds: Mapping[str, Kind]) -> Iterator[tuple[str, str, str]]:
    """Yield (problem, value found, what to write) for each unknown option and each invalid value."""
    for name, value in options.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            yield (
                f"has no option '{name}'",
                name,
                near[0] if near else ", ".join(sorted(kinds)) or "no options",
            )
        elif not fits(value, kinds[name]):
            kind = kinds[name]
            takes = _TEXTS[kind] if isinstance(kind, str) else " or ".join(kind)
            yield f"expects {takes} for '{name}'", f"{name}: {value}", f"{name}: {takes}"


def fits(value: Json, kind: Kind) -> bool:
    """Whether ``value`` is of the kind; None stands for the option's default."""
    if value is None:
        return True
    if isinstance(kind, tuple):
        return value in kind
    if kind == "switch":
        return isinstance(value, bool) or str(value) in ("true", "false", "True", "False")
    if kind == "three":
        return isinstance(value, (list, tuple)) and len(value) == 3 and all(fits(n, "number") for n in value)
    if kind in ("pair", "betas"):
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            return False
        numbers = [item for item in value if isinstance(item, (int, float)) and fits(item, "number")]
        return len(numbers) == 2 and (kind == "pair" or all(0 <= item < 1 for item in numbers))
    # True is an int in Python
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    is_whole = value == int(value)
    return {"size": value >= 0, "whole": is_whole, "count": is_whole and value >= 1}.get(kind, True)
