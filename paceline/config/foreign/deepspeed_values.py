"""Convert values of DeepSpeed's JSON to the types of its key table."""

from __future__ import annotations

from collections.abc import Callable

from pydantic_core import PydanticCustomError

from paceline.config.sections.types import to_bool, to_int, to_number, to_text
from paceline.core.json_types import Json


def convert(spec: str, value: Json) -> Json:
    """Convert ``value`` to the type of ``spec`` (``int 0..3``, ``bool``, ``none|cpu|nvme``).

    Raises PydanticCustomError if it does not fit.
    """
    kind, _, limits = spec.partition(" ")
    if kind == "any":
        return value
    if kind in ("mapping", "list"):
        if isinstance(value, {"mapping": dict, "list": list}[kind]):
            return value
        raise _fail(f"must be a {kind}")
    if kind == "bool":
        return to_bool(value)
    if kind == "text":
        return to_text(value)
    if kind not in _NUMBERS:
        words = kind.split("|")
        if str(value).lower() in words:
            return str(value).lower()
        raise _fail(f"must be one of {', '.join(words)}")
    read = _NUMBERS[kind](value)
    low, _, high = limits.partition("..")
    if (low and read < float(low)) or (high and read > float(high)):
        raise _fail(f"must be at least {low}" if low and read < float(low) else f"must be at most {high}")
    return read


def _number(value: Json) -> float:
    number = to_number(value)
    return value if isinstance(value, (int, float)) else number


_NUMBERS: dict[str, Callable[[Json], float]] = {"int": to_int, "number": _number}


def _fail(expected: str) -> PydanticCustomError:
    return PydanticCustomError("paceline", "{expected}", {"expected": expected})
