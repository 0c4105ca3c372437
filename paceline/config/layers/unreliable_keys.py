"""Find the unreliable keys of an invalid config; the others can be checked without false findings."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath

from paceline.config import codes
from paceline.config.schema import SECTIONS, Config, field_of, words_of
from paceline.config.sections.types import Section
from paceline.config.source import DEFAULTS, Source
from paceline.core.diagnostics import Diagnostic

#: In place of a section: a line outside all sections may have been meant for any of them.
ANYWHERE = "*"


def unreliable_keys(
    problems: Sequence[Diagnostic],
    provenance: Mapping[str, Source],
    file: str,
    top: Mapping[str, int],
    meant: frozenset[str] = frozenset(),
    files: Mapping[str, str] | None = None,
) -> frozenset[str]:
    """Return the keys that are given and wrong, and the sections that have an unknown key.

    An unknown key may be a misspelling of any other key of its section. ``top``: top-level keys of ``file`` →
    line, from 1; ``meant``: places of unknown keys with a single possible meaning, read as that key.
    ``files``: names of other programs' files → the config key of each, in doubt if the file is wrong.
    """
    keys: dict[str, set[str]] = {}
    for key, source in provenance.items():
        if source.layer != DEFAULTS:
            keys.setdefault(source.place(), set()).add(key)
    starts = sorted((line, name) for name, line in top.items())
    keys_in_doubt: set[str] = set()
    for problem in problems:
        if problem.code == codes.CONFIG_UNKNOWN_KEY.name and problem.where in meant:
            continue
        for location in problem.where.split(" and "):
            if file_key := (files or {}).get(PurePath(location.rpartition(":")[0]).name):
                keys_in_doubt.add(file_key)
                continue
            there = keys.get(location, set())
            # Several keys stand in one line of the file: the problem names its own.
            keys_in_doubt |= {
                key for key in there if re.search(rf"\b{re.escape(key)}\b", problem.what)
            } or there
            if location not in keys or problem.code == codes.CONFIG_UNKNOWN_KEY.name:
                keys_in_doubt.add(_section(location, file, starts))
    return frozenset(keys_in_doubt)


def _section(location: str, file: str, starts: Sequence[tuple[int, str]]) -> str:
    """Return the section that contains a place, or ``ANYWHERE``."""
    name, _, line = location.rpartition(":")
    if name == file and line.isdigit():
        # Behind every name at that line: the highest code point
        before = bisect_right(starts, (int(line), "\U0010ffff")) - 1
        section = starts[before][1] if before >= 0 else ""
    else:
        match = re.match(r"(?:command line |environment PACELINE_)?([A-Za-z]+)(?:\.|__)", location)
        section = match[1].lower() if match else ""
    return section if section in SECTIONS else ANYWHERE


def is_reliable(doubt: frozenset[str], *needed: str) -> bool:
    """Whether none of these keys and sections is doubted, nor anything inside or around them."""
    return not any(
        f"{doubtful}.".startswith(f"{need}.") or f"{need}.".startswith(f"{doubtful}.")
        for doubtful in doubt
        for need in needed
    )


def certain_findings(
    rules: Callable[[Config], Iterable[Diagnostic]], config: Config, doubt: Iterable[str]
) -> tuple[Diagnostic, ...]:
    """Return the findings of ``rules`` in ``config`` that hold for any intended value of the keys in
    ``doubt``.

    ``config`` has a default in place of each invalid value, and a finding may be about that default alone.
    For a key that takes words, the rules run with each word. For any other key, findings about it are left
    out; they return once the value is right.
    """
    findings = tuple(rules(config))
    # A finding stands if it is there for every word that may have been meant
    for key in doubt:
        field = field_of(key)
        words = words_of(field) if field else ()
        if field and not words:
            name = re.compile(rf"\b{re.escape(key.rpartition('.')[2])}\b")
            findings = tuple(d for d in findings if not name.search(f"{d.what} {d.found}"))
        section, *path = key.split(".")
        for word in words if findings else ():
            other = config.model_copy(update={section: _with(getattr(config, section), path, word)})
            again = {(d.code, d.where) for d in rules(other)}
            findings = tuple(d for d in findings if (d.code, d.where) in again)
    return findings


def _with(section: Section | None, path: Sequence[str], value: bool | str) -> Section | None:
    """Return ``section`` with ``value`` at ``path`` inside it; unchanged if the path does not exist."""
    if section is None:
        return None
    name, *below = path
    inner = _with(getattr(section, name), below, value) if below else value
    return section.model_copy(update={name: inner})
