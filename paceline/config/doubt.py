"""Which keys of an invalid config are unreliable; the others can be checked without false findings."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from paceline.config import codes
from paceline.config.schema import SECTIONS
from paceline.config.source import DEFAULTS, Source
from paceline.core.diagnostics import Diagnostic

#: In place of a section: a line outside all sections may have been meant for any of them.
ANYWHERE = "*"


def doubted(
    problems: Sequence[Diagnostic],
    provenance: Mapping[str, Source],
    file: str,
    top: Mapping[str, int],
    meant: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the keys that are given and wrong, and the sections that have an unknown key.

    An unknown key may be a misspelling of any other key of its section. ``top``: top-level keys of ``file`` →
    line, from 1; ``meant``: places of unknown keys that can only mean one key and are read as that.
    """
    keys: dict[str, set[str]] = {}
    for key, source in provenance.items():
        if source.layer != DEFAULTS:
            keys.setdefault(source.place(), set()).add(key)
    starts = sorted((line, name) for name, line in top.items())
    found: set[str] = set()
    for problem in problems:
        if problem.code == codes.CONFIG_UNKNOWN_KEY.name and problem.where in meant:
            continue
        for place in problem.where.split(" and "):
            found |= keys.get(place, set())
            if place not in keys or problem.code == codes.CONFIG_UNKNOWN_KEY.name:
                found.add(_section(place, file, starts))
    return frozenset(found)


def _section(place: str, file: str, starts: Sequence[tuple[int, str]]) -> str:
    """Return the section that contains a place, or ``ANYWHERE``."""
    name, _, line = place.rpartition(":")
    if name == file and line.isdigit():
        before = bisect_right(starts, (int(line), "\U0010ffff")) - 1
        section = starts[before][1] if before >= 0 else ""
    else:
        match = re.match(r"(?:command line |environment PACELINE_)?([A-Za-z]+)(?:\.|__)", place)
        section = match[1].lower() if match else ""
    return section if section in SECTIONS else ANYWHERE


def sure(doubt: frozenset[str], *needed: str) -> bool:
    """Whether none of these keys and sections is doubted, nor anything inside or around them."""
    return not any(
        f"{one}.".startswith(f"{need}.") or f"{need}.".startswith(f"{one}.")
        for one in doubt
        for need in needed
    )
