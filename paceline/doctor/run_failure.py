"""``paceline doctor RUN``: what ended a run, from its own records first, then from its logs.

The ranks' last collectives are compared: ranks that are behind, and calls that differ.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import listed, open_run_file, read_run_file
from paceline.core.json_types import JsonObject, as_list, as_number, as_object, parse_json
from paceline.core.rundir import RunDir
from paceline.doctor import codes
from paceline.doctor.logs.catalogue import UNKNOWN, Cause, catalogue
from paceline.doctor.logs.diagnose import FailureReport, QuotedLine, diagnose, rank_in_name
from paceline.doctor.logs.reader import LogFacts, LogReader, read_lines
from paceline.runlog.events import MAX_LINE_BYTES, CheckpointSaved, Error, Notice, RunStarted, Step, from_json

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


_CLASSES = Path(__file__).with_name("classes.toml")
_QUIET_CODES = ("runtime.rank_quiet", "runtime.rank_late", "runtime.rank_silent", "runtime.collective_stuck")
_SIGNALS = {"SIGSEGV": "segfault", "SIGBUS": "shm_open", "SIGILL": "no_kernel_image", "SIGFPE": "segfault"}


@dataclass(frozen=True)
class RunStanding:
    """How the run stands, as the page says it. ``seconds``: since when it is quiet or gone.

    ``checkpoint``, ``saved``: the newest sound checkpoint and its step; "" and 0 without one.
    """

    name: str
    seconds: float
    checkpoint: str
    saved: int
    resume: str


@dataclass(frozen=True)
class _Finding:
    """A diagnostic that a record of the run holds, and where."""

    rank: int | None
    diagnostic: Diagnostic
    line: QuotedLine


def diagnose_run(run: RunDir, state: RunStanding) -> FailureReport:
    """Say what ended the run, or that nothing did."""
    last, errors, notices = _events(run)
    recorded = [*_exits(run), *errors, *_result(run)]
    notes = tuple(
        f"[{finding.code}] {finding.found or finding.what}"
        for finding in run_findings(run)
        if finding.severity is not Severity.NOTE
    )
    lost = _lost(last, state)
    if state.name in ("completed", "early_stopped", "running", "starting", "planned", "paused"):
        return FailureReport(False, f"the run is {state.name.replace('_', ' ')}, step {last}", notes=notes)
    if state.name == "stopped" and not any(_class(f.diagnostic.code) == "preemption" for f in recorded):
        text = f"the run was stopped on request at step {last}; it goes on with: {state.resume}"
        return FailureReport(False, text, lost=lost, go_on=state.resume, notes=notes)
    logs = list(_logs(run))
    if state.name == "quiet":
        recorded = [finding for finding in notices if finding.diagnostic.code in _QUIET_CODES]
        text = f"no step has ended for {state.seconds:.0f} s."
        report = FailureReport(
            True, state.name, UNKNOWN, "", text, remedy="py-spy dump of the ranks' processes"
        )
    else:
        report = diagnose(logs) if logs else FailureReport(True, state.name, UNKNOWN)
        report = report if report.failed else FailureReport(True, state.name, UNKNOWN)
        text = f"The run is {state.name}, and neither its records nor its logs say why."
        if state.name == "vanished":
            text = f"No process has given a sign of life for {state.seconds:.0f} s, and no end was written."
        remedy = "see what ended the launcher itself: `sacct`, `kubectl describe pod`, `dmesg` of its node"
        if report.kind == UNKNOWN and not report.cause:
            report = replace(report, cause=text, remedy=remedy)
    if recorded:
        report = _of_record(recorded, report)
    return replace(report, state=state.name, lost=lost, go_on=_go_on(report, state), notes=notes)


def _of_record(recorded: Sequence[_Finding], of_logs: FailureReport) -> FailureReport:
    """The record's first error with its class; where it has none, what message or logs say."""
    first = next((finding for finding in recorded if _class(finding.diagnostic.code)), recorded[0])
    finding = recorded[0] if not _class(recorded[0].diagnostic.code) and of_logs.kind != UNKNOWN else first
    diagnostic = finding.diagnostic
    kind, name = _class(diagnostic.code), diagnostic.code
    same = (
        other.line for other in recorded if other.diagnostic.code == diagnostic.code and other.line.number
    )
    evidence = (next(same, finding.line), *of_logs.evidence[:2])
    if not kind:
        cause = _named(diagnostic)
        if cause is None and of_logs.kind not in ("", UNKNOWN):
            return replace(
                of_logs, rank=of_logs.rank if finding.rank is None else finding.rank, evidence=evidence
            )
        kind = cause.kind if cause is not None else UNKNOWN
        name = cause.id if cause is not None and cause.id != "python_exception" else diagnostic.code
    text = diagnostic.what + (f" ({diagnostic.found})" if diagnostic.found else "")
    remedy = diagnostic.hint or of_logs.remedy
    rank = of_logs.rank if finding.rank is None else finding.rank
    return replace(
        of_logs, failed=True, kind=kind, id=name, cause=text, rank=rank, evidence=evidence, remedy=remedy
    )


def _named(diagnostic: Diagnostic) -> Cause | None:
    """The cause that a diagnostic's own words name: an exception's text, a signal."""
    causes = catalogue().causes
    text = f"{diagnostic.what} {diagnostic.found}"
    by_signal = next((name for word, name in _SIGNALS.items() if word in text), "")
    if by_signal:
        return causes[by_signal]
    cause = catalogue().read(text)
    if cause is None and diagnostic.code in ("training.exception", "launch.rank_left"):
        return causes["python_exception"]
    return cause if cause is not None and cause.role == "root" else None


@cache
def _prefixes() -> dict[str, str]:
    table = TypeAdapter(dict[str, list[str]]).validate_python(tomllib.loads(_CLASSES.read_text("utf-8")))
    return {prefix: kind for kind, prefixes in table.items() for prefix in prefixes}


def _class(code: str) -> str:
    """The class of a code; "" where the code alone does not tell it."""
    prefixes = _prefixes()
    best = max((prefix for prefix in prefixes if code.startswith(prefix)), key=len, default="")
    return prefixes[best] if best else ""


def _events(run: RunDir) -> tuple[int, list[_Finding], list[_Finding]]:
    """The last step, and the errors and notices of the last attempt, with their lines."""
    last, errors, notices = 0, list[_Finding](), list[_Finding]()
    for path in listed(run.events_dir, "rank-*.events.jsonl"):
        own_errors, own_notices = list[_Finding](), list[_Finding]()
        for number, data in _event_lines(path):
            event = from_json(data)
            if isinstance(event, RunStarted):
                own_errors, own_notices = [], []
                last = max(last, event.start_step)
            elif isinstance(event, Step | CheckpointSaved):
                last = max(last, event.step)
            elif isinstance(event, Error | Notice):
                line = QuotedLine(str(path), number, f"[{event.diagnostic.code}] {event.diagnostic.what}")
                rank = event.rank if isinstance(event, Error) else rank_in_name(path)
                finding = _Finding(rank, event.diagnostic, line)
                (own_errors if isinstance(event, Error) else own_notices).append(finding)
        errors += own_errors
        notices += own_notices
    errors.sort(
        key=lambda finding: finding.rank != rank_in_name(Path(finding.line.file))
    )  # its own words first
    return last, errors, notices


def _event_lines(path: Path) -> Iterator[tuple[int, JsonObject]]:
    with suppress(OSError), open_run_file(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            with suppress(ValueError, RecursionError):
                data = parse_json(line)
                if isinstance(data, dict):
                    yield number, data


def _exits(run: RunDir) -> Iterator[_Finding]:
    """The first cause by each node's launcher."""
    for path in listed(run.events_dir, "exits*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            data = as_object(parse_json(read_run_file(path).encode()))
            cause = as_object(data.get("cause"))
            if cause:
                diagnostic, rank = Diagnostic.from_json(cause), data.get("rank")
                line = QuotedLine(str(path), 0, f"[{diagnostic.code}] {diagnostic.what}")
                yield _Finding(rank if isinstance(rank, int) else None, diagnostic, line)


def _result(run: RunDir) -> Iterator[_Finding]:
    with suppress(OSError, ValueError, TypeError, KeyError):
        data = as_object(json.loads(read_run_file(run.result_json)))
        for row in as_list(data.get("diagnostics")):
            diagnostic = Diagnostic.from_json(as_object(row))
            if diagnostic.severity is Severity.ERROR or _class(diagnostic.code) == "preemption":
                line = QuotedLine(str(run.result_json), 0, f"[{diagnostic.code}] {diagnostic.what}")
                yield _Finding(None, diagnostic, line)


def _logs(run: RunDir) -> Iterator[LogFacts]:
    for path in listed(run.logs, "*.log"):
        if path != run.training_log or not run.rank_log(0).is_file():
            with suppress(OSError), open_run_file(path) as file:
                yield LogReader(str(path), rank_in_name(path)).read(read_lines(file))


def _lost(last: int, state: RunStanding) -> str:
    steps = max(0, last - state.saved)
    if not last:
        return "nothing: no step was finished"
    if not state.checkpoint:
        return f"all {last} steps: there is no sound checkpoint"
    what = f"{steps} step{'' if steps == 1 else 's'} ({state.saved + 1} to {last})" if steps else "nothing"
    return f"{what}: the newest sound checkpoint is {state.checkpoint}"


def _go_on(report: FailureReport, state: RunStanding) -> str:
    cause = catalogue().causes.get(report.id)
    free = report.kind in ("preemption", "time limit", "network", "hardware", UNKNOWN)
    needs = "" if free or (cause is not None and cause.go_on == "yes") else "change that, then: "
    return needs + state.resume
