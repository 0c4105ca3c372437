"""The causes of failures, as data: ``causes/CLASS.toml``, a table for each id.

The 90 ids of the failure catalogue are among them. An entry says how its messages read (``patterns``, without
regard to case), and how it stands among others.

- ``role``: root, either (the cause only where nothing better is found) or echo (never a cause).
- ``fact``: kernel or scheduler saw it, so it explains exceptions, whichever was written first.
- ``warnings``: its lines count although they are warnings.
- ``before``, ``after``: ids that lose or win when both read the same line.
- ``frames``, ``refines``, ``exceptions``: it replaces another id if the traceback has such a frame.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

FOLDER = Path(__file__).parent.parent / "causes"
UNKNOWN = "unknown"
_LEVELS = {"root": 1.0, "either": 4.0, "echo": 5.0}
ECHO = _LEVELS["echo"]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    patterns: tuple[str, ...]
    cause: str
    remedy: str
    role: Literal["root", "either", "echo"] = "root"
    fact: bool = False
    warnings: bool = False
    level: float | None = None
    go_on: Literal["yes", "changed", "elsewhere"] = "changed"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    refines: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cause:
    """One id. ``level``: the lower, the nearer to a first cause. ``go_on``: what a new start needs."""

    id: str
    kind: str
    text: str
    remedy: str
    role: str
    level: float
    fact: bool
    warnings: bool
    go_on: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    refines: tuple[str, ...]
    exceptions: tuple[str, ...]
    frames: tuple[re.Pattern[str], ...]

    def wins(self, other: Cause) -> bool:
        """Whether this one is meant where both read the same line and the order decides."""
        return other.id in self.before or self.id in other.after


@dataclass(frozen=True)
class Wording:
    """One pattern, with a text that every match of it holds, in lower case: looked for first."""

    cause: Cause
    regex: re.Pattern[str]
    gate: str


@dataclass(frozen=True)
class Catalogue:
    causes: dict[str, Cause]
    wordings: tuple[Wording, ...]

    def read(self, text: str) -> Cause | None:
        """Return the cause that a message names; None if it names none."""
        lower = text.lower()
        best: tuple[Cause, int] | None = None
        for wording in self.wordings:
            if wording.gate not in lower or (match := wording.regex.search(text)) is None:
                continue
            candidate = (wording.cause, match.end() - match.start())
            if best is None or _better(candidate, best):
                best = candidate
        return best[0] if best else None


def _better(one: tuple[Cause, int], other: tuple[Cause, int]) -> bool:
    if one[0].wins(other[0]) or other[0].wins(one[0]):
        return one[0].wins(other[0])
    return (one[0].level, -one[1]) < (other[0].level, -other[1])


@cache
def catalogue() -> Catalogue:
    """Read the tables, once."""
    causes, wordings = {}, []
    for cause, row in _rows():
        causes[cause.id] = cause
        wordings += [
            Wording(cause, re.compile(pattern, re.IGNORECASE), literal(pattern).lower())
            for pattern in row.patterns
        ]
    return Catalogue(causes, tuple(wordings))


def _rows() -> Iterator[tuple[Cause, _Row]]:
    adapter = TypeAdapter(dict[str, _Row])
    for path in sorted(FOLDER.glob("*.toml")):
        kind = path.stem.replace("_", " ")
        for name, row in adapter.validate_python(tomllib.loads(path.read_text("utf-8"))).items():
            level = row.level if row.level is not None else 0.0 if row.fact else _LEVELS[row.role]
            frames = tuple(re.compile(pattern) for pattern in row.frames)
            yield (
                Cause(
                    name,
                    kind,
                    row.cause,
                    row.remedy,
                    row.role,
                    level,
                    row.fact,
                    row.warnings,
                    row.go_on,
                    row.before,
                    row.after,
                    row.refines,
                    row.exceptions,
                    frames,
                ),
                row,
            )


def literal(pattern: str) -> str:
    """Return the longest text that every match of ``pattern`` holds; "" if none can be told."""
    runs: list[str] = []
    run, depth, at = "", 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            following = pattern[at + 1]
            plain = not following.isalnum() and not depth
            run, at = run + following if plain else _end(runs, run), at + 2
        elif char == "[":
            at, run = pattern.index("]", at + 2) + 1, _end(runs, run)
        elif char in "()":
            depth, at, run = depth + (1 if char == "(" else -1), at + 1, _end(runs, run)
        elif char == "{":
            at, run = pattern.index("}", at) + 1, _end(runs, run[:-1])
        elif char in "?*+":
            at, run = at + 1, _end(runs, run if char == "+" else run[:-1])
        elif char == "|" and not depth:
            return ""
        elif char in ".^$" or depth:
            at, run = at + 1, _end(runs, run)
        else:
            run, at = run + char, at + 1
    _end(runs, run)
    return max(runs, key=len, default="")


def _end(runs: list[str], run: str) -> str:
    runs.append(run)
    return ""
