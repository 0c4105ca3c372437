"""The last collectives of a run's ranks side by side: who is behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import listed
from paceline.core.json_types import JsonObject, as_number
from paceline.core.rundir import RunDir
from paceline.doctor import codes

_NAMED = 8


def run_findings(run: RunDir) -> Iterator[Diagnostic]:
    """Compare the dumps that ranks left at a time-out (``events/flight_RANK.json``)."""
    texts = {}
    for path in listed(run.events_dir, "flight_*.json"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if match := re.fullmatch(r"flight_(\d+)\.json", path.name):
                texts[int(match[1])] = path.read_text(encoding="utf-8", errors="replace")
    if len(texts) < 2:
        yield codes.DOCTOR_NO_FLIGHTS(
            "the run has no collectives of several ranks to compare",
            str(run.events_dir),
            f"{len(texts)} of the files flight_RANK.json",
            "nothing is to be done: ranks on accelerators leave them when a collective exceeds ddp_timeout",
            Severity.NOTE,
        )
    for line in compare_flights(texts):
        hint = "see the logs of the ranks that are behind, at that time"
        yield codes.DOCTOR_STUCK("the ranks waited for each other", str(run.events_dir), line, hint)


def compare_flights(texts: dict[int, str]) -> list[str]:
    """Return a line a group whose ranks are not at the same collective. ``texts``: dumps by rank."""
    last: dict[str, dict[int, int]] = {}
    for rank, text in texts.items():
        for entry in _entries(text):
            named = entry.get("process_group")
            group = str(named[-1]) if isinstance(named, list) and named else "?"
            ranks = last.setdefault(group, {})
            ranks[rank] = max(int(as_number(entry.get("collective_seq_id") or 0)), ranks.get(rank, 0))
    lines = []
    for group, ranks in last.items():
        ahead = max(ranks.values())
        behind = [rank for rank, number in sorted(ranks.items()) if number < ahead]
        if behind:
            places = ", ".join(f"rank {rank} at {ranks[rank]}" for rank in behind[:_NAMED])
            lines.append(f"group {group}: {places}; the others at collective {ahead}")
    return lines


def _entries(text: str) -> list[JsonObject]:
    try:
        found = json.loads(text)["entries"]
    except (ValueError, KeyError, TypeError):
        return []
    return [entry for entry in found if isinstance(entry, dict)]
