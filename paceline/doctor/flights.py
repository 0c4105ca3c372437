"""Compare the last collectives of a run's ranks: find ranks that are behind, and calls that differ."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import listed, read_run_file
from paceline.core.json_types import JsonObject, as_number
from paceline.core.rundir import RunDir
from paceline.doctor import codes

_NAMED = 8  # ranks in a line; the first ones say enough
_SHOWN = 4  # tensors of a call


def run_findings(run: RunDir) -> Iterator[Diagnostic]:
    """Compare the dumps that ranks left at a time-out (``events/flight_RANK.json``)."""
    texts = {}
    for path in listed(run.events_dir, "flight_*.json"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if match := re.fullmatch(r"flight_(\d+)\.json", path.name):
                texts[int(match[1])] = read_run_file(path)
    if len(texts) < 2:
        yield codes.DOCTOR_NO_FLIGHTS(str(run.events_dir), f"{len(texts)} of the files flight_RANK.json")
    for line in differing_calls(texts):
        remedy = (
            "all ranks of a group call the same collectives in the same order: see what the named rank ran"
        )
        yield codes.DOCTOR_MISMATCH(str(run.events_dir), line, hint=remedy)
    for line in compare_flights(texts):
        remedy = "see the logs of the ranks that are behind, at that time"
        yield codes.DOCTOR_STUCK(str(run.events_dir), line, hint=remedy)


def compare_flights(texts: dict[int, str]) -> list[str]:
    """Return a line for each group whose ranks are not at the same collective. ``texts``: dumps by rank."""
    lines = []
    for group, ranks in _by_group(texts).items():
        last = {rank: max(calls, default=0) for rank, calls in ranks.items()}
        ahead = max(last.values())
        behind = [rank for rank, number in sorted(last.items()) if number < ahead]
        if behind:
            places = ", ".join(f"rank {rank} at {last[rank]}" for rank in behind[:_NAMED])
            lines.append(f"group {group}: {places}; the others at collective {ahead}")
    return lines


def differing_calls(texts: dict[int, str]) -> list[str]:
    """Return a line for each group: the first collective that its ranks called with different arguments.

    Compared as torch's own analyzer does (``torch.distributed.flight_recorder``): sizes of an all-to-all, a
    scatter's input and a gather's output may differ by rank.
    """
    lines = []
    for group, ranks in _by_group(texts).items():
        for number in sorted(set().union(*ranks.values())):
            calls = {rank: calls[number] for rank, calls in sorted(ranks.items()) if number in calls}
            usual, count = Counter(calls.values()).most_common(1)[0]
            others = [f"rank {rank} in {call}" for rank, call in calls.items() if call != usual]
            if others:
                rest = (
                    "the others" if count > 1 else f"rank {next(r for r, c in calls.items() if c == usual)}"
                )
                lines.append(
                    f"group {group}, collective {number}: {', '.join(others[:_NAMED])}; {rest} in {usual}"
                )
                break
    return lines


def _by_group(texts: dict[int, str]) -> dict[str, dict[int, dict[int, str]]]:
    """Return group → rank → number of a collective → its description."""
    groups: dict[str, dict[int, dict[int, str]]] = {}
    for rank, text in texts.items():
        for entry in _entries(text):
            names = entry.get("process_group")
            group = str(names[-1]) if isinstance(names, list) and names else "?"
            calls = groups.setdefault(group, {}).setdefault(rank, {})
            if not entry.get("is_p2p") and (number := int(as_number(entry.get("collective_seq_id") or 0))):
                calls[number] = _call(entry)
    return groups


def _call(entry: JsonObject) -> str:
    """Return operation, sizes and dtypes, limited to those that must be equal on all ranks."""
    name = str(entry.get("profiling_name", "?")).split(":")[-1].split(" ")[0]
    parts = [name]
    for side, free in (("input", ("all_to_all", "scatter")), ("output", ("all_to_all", "gather"))):
        sizes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if isinstance(sizes, list) and not name.startswith(free):
            types = "/".join(sorted(set(map(str, dtypes)))) if isinstance(dtypes, list) else ""
            parts.append(f"{side} {', '.join(map(str, sizes[:_SHOWN]))} {types}".strip())
    return ": ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else name


def _entries(text: str) -> list[JsonObject]:
    try:
        entries = json.loads(text)["entries"]
    except (ValueError, KeyError, TypeError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]
