"""Interpret common spellings of numbers (4k, 1,000, 5%, 2**10), for hints about what to write."""

from __future__ import annotations

import re
from collections.abc import Callable

from paceline.config.yaml_text.lookalike_characters import plain
from paceline.config.yaml_text.scalars import parse_number

_UNSIGNED = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = rf"[-+]?{_UNSIGNED}"
_THOUSANDS = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "b": 1e9, "B": 1e9, "g": 1e9, "G": 1e9}
_SECONDS = {
    "s": 1,
    "sec": 1,
    "secs": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "mins": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
}
_MOST_DIGITS = 15


def number_meant(key: str, written: str) -> str | None:
    """Return what to write for a text that should be a number; None if no meaning is likely."""
    text = plain(written).strip().rstrip(",;").strip()
    if len(text) > 40:
        return None
    if (
        "timeout" in key
        and (duration := re.fullmatch(rf"({_UNSIGNED})\s*([a-z]+)", text))
        and duration[2] in _SECONDS
    ):
        return _spelt(float(duration[1]) * _SECONDS[duration[2]])
    if parse_number(text) is not None and text != written:
        return text
    return next(
        (meant for shape, means in _SHAPES if (m := re.fullmatch(shape, text)) and (meant := means(m))), None
    )


def _shortened(match: re.Match[str]) -> str:
    meant = _spelt(float(match[1]) * _THOUSANDS[match[2]])
    binary = _spelt(float(match[1]) * 1024)
    return f"{meant} (or {binary}, if multiples of 1024 were meant)" if match[2] in "kK" else meant


def _power(match: re.Match[str]) -> str | None:
    base, exponent = float(match[1]), int(match[2])
    return _spelt(base**exponent) if abs(exponent) <= 64 and base else None


_SHAPES: tuple[tuple[str, Callable[[re.Match[str]], str | None]], ...] = (
    (rf"({_NUMBER})\s*%", lambda found: _spelt(float(found[1]) / 100)),
    (rf"({_NUMBER})\s*([kKmMbBgG])", _shortened),
    (r"[-+]?\d{1,3}(?:[ ,'_]\d{3})+(?:\.\d+)?", lambda found: re.sub(r"[ ,'_]", "", found[0])),
    (r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", lambda found: found[0].replace(",", ".")),
    (rf"({_NUMBER})\s*(?:\*\*|\^)\s*([-+]?\d+)", _power),
    (r"(\d+(?:\.\d+)?)\s*[x*×]\s*10\s*(?:\*\*|\^)\s*([-+]?\d+)", lambda found: f"{found[1]}e{int(found[2])}"),
    (rf"({_NUMBER})\s*[x*×]\s*({_NUMBER})", lambda found: _spelt(float(found[1]) * float(found[2]))),
    (
        rf"({_UNSIGNED})\s*/\s*({_UNSIGNED})",
        lambda found: _spelt(float(found[1]) / float(found[2])) if float(found[2]) else None,
    ),
    (r"(\d+(?:\.\d+)?) *([eE]) *([-+]?) *(\d+)", lambda found: f"{found[1]}e{found[3]}{found[4]}"),
    (rf"({_NUMBER})\s*(?:f|L|steps?|epochs?|rows?|tokens?)", lambda found: found[1]),
)


def _spelt(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 10**_MOST_DIGITS else f"{number:.12g}"
