"""``paceline doctor --log``: read the logs of one run and say what failed first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline.core.files import open_file
from paceline.doctor.logs.catalogue import UNKNOWN
from paceline.doctor.logs.lines import read_lines
from paceline.doctor.logs.reader import Evidence, LogFacts, LogReader
from paceline.doctor.logs.report import Consequence, FailureReport, QuotedLine
from paceline.doctor.logs.resume import go_on, lost
from paceline.doctor.logs.verdict import FirstCause, judge

_RANK_IN_NAME = re.compile(
    r"(?:^|[/_.-])(?:rank|task|proc|worker)[_.-]?(\d{1,6})(?=[/_.-])|/(\d{1,5})/std(?:err|out)\.log$"
)
_ALIKE = 3  # lines that are quoted


def read_logs(paths: Iterable[Path]) -> list[LogFacts]:
    """Read the logs. Raises OSError for what is no file, as ``core.files.open_file`` does."""
    facts = []
    for path in paths:
        with open_file(path) as file:
            facts.append(LogReader(str(path), rank_in_name(path)).read(read_lines(file)))
    return facts


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a log's name or folder tells: ``rank-3.log``, ``attempt_0/3/stderr.log``."""
    match = _RANK_IN_NAME.search(path.as_posix())
    return int(match[1] or match[2]) if match else None


def diagnose(logs: Sequence[LogFacts]) -> FailureReport:
    """Say what failed first in logs of one run."""
    verdict = judge(logs)
    if not verdict.failed:
        return FailureReport(False, state=_sound(logs))
    if verdict.root is None:
        return _unknown(verdict, logs)
    root, cause = verdict.root, verdict.root.cause
    return FailureReport(
        True,
        "failed",
        verdict.kind,
        cause.id,
        cause.text,
        verdict.rank,
        verdict.node,
        _quoted(root, verdict.echoes),
        cause.remedy,
        lost(logs),
        go_on(verdict, logs),
        _consequences(verdict.echoes, root),
    )


def _unknown(verdict: FirstCause, logs: Sequence[LogFacts]) -> FailureReport:
    death, evidence = verdict.death, []
    if death is not None:
        how = f"was ended by {death.signal_name}" if death.code < 0 else f"ended with exit code {death.code}"
        who = f"rank {death.rank}" if death.rank is not None else "a process"
        cause = f"{who} {how}, and nothing in these logs says why."
        evidence.append(QuotedLine(verdict.file, death.number, death.text))
        remedy = "see that rank's own log and standard error"
        if death.code == -9:
            remedy = (
                "ask who sent it: `dmesg | grep -i oom` on its node, `sacct -j JOB -o state,exitcode,maxrss`"
            )
    else:
        cause = "These logs hold consequences only; the first cause is not among them."
        remedy = "give the logs of the other ranks and nodes too: paceline doctor --log FILE FILE …"
    if not evidence:
        evidence = [QuotedLine(item.file, item.number, item.text) for item in verdict.echoes[:_ALIKE]]
    return FailureReport(
        True,
        "failed",
        UNKNOWN,
        "",
        cause,
        verdict.rank,
        verdict.node,
        tuple(evidence),
        remedy,
        lost(logs),
        go_on(verdict, logs),
        _consequences(verdict.echoes, None),
    )


def _quoted(root: Evidence, others: Sequence[Evidence]) -> tuple[QuotedLine, ...]:
    """The line of the cause, and further ones of the same message or kind."""
    same = [item for item in others if item.cause.id == root.cause.id and item.text != root.text]
    return tuple(QuotedLine(item.file, item.number, item.text) for item in [root, *same[: _ALIKE - 1]])


def _consequences(others: Sequence[Evidence], root: Evidence | None) -> tuple[Consequence, ...]:
    by_id: dict[str, list[Evidence]] = {}
    for item in others:
        if root is None or item.cause.id != root.cause.id:
            by_id.setdefault(item.cause.id, []).append(item)
    return tuple(
        Consequence(
            name,
            items[0].cause.kind,
            items[0].cause.role,
            len(items),
            f"{items[0].file}:{items[0].number}",
            items[0].rank,
        )
        for name, items in by_id.items()
    )


def _sound(logs: Sequence[LogFacts]) -> str:
    count = sum(facts.lines for facts in logs)
    last = max((facts.progress.last for facts in logs if facts.progress.last is not None), default=None)
    ended = ", and training ended" if any(facts.progress.ended for facts in logs) else ""
    steps = f", up to step {last}" if last is not None else ""
    return f"{count} lines{steps}{ended}"
