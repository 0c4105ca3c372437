"""``paceline doctor --log``: read the logs of one run and report what failed first, as text and as JSON.

The report says how the run's trainer goes on from a checkpoint, and what is lost.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.files import open_file
from paceline.core.json_types import Json
from paceline.doctor.logs.catalogue import UNKNOWN
from paceline.doctor.logs.reader import Evidence, LogFacts, LogReader, read_lines
from paceline.doctor.logs.trainers import TRAINERS
from paceline.doctor.logs.verdict import FirstCause, judge
from paceline.runlog.redact import Redactor, printable

_JOB = re.compile(r"(?:JOB|JobId=|StepId=|STEP) ?(\d+)")


_NEEDS = {"yes": "", "elsewhere": "leave that node out, then: ", "changed": "change that, then: "}


def lost(logs: Sequence[LogFacts]) -> str:
    """Say which steps the logs show to be lost."""
    last = max((facts.progress.last for facts in logs if facts.progress.last is not None), default=None)
    saving = next((facts.progress for facts in logs if facts.progress.saved), None)
    if last is None:
        return "nothing: these logs show no step"
    if saving is None:
        return f"up to step {last}: these logs name no checkpoint"
    if saving.saved_step is None:
        return f"what came after {saving.saved}"
    steps = last - saving.saved_step
    what = (
        f"{steps} step{'' if steps == 1 else 's'} ({saving.saved_step + 1} to {last})"
        if steps > 0
        else "nothing"
    )
    return f"{what}, if {saving.saved} is whole"


def go_on(verdict: FirstCause, logs: Sequence[LogFacts]) -> str:
    """Return the command that goes on, with what it needs first."""
    path = next((facts.progress.saved for facts in logs if facts.progress.saved), "")
    name = next((facts.trainer for facts in logs if facts.trainer), "")
    trainer = next((trainer for trainer in TRAINERS if trainer.name == name), None)
    needs = _NEEDS[verdict.root.cause.go_on] if verdict.root is not None else "find the cause, then: "
    if not path:
        return f"{needs}the same command; these logs name no checkpoint to go on from"
    if needs == "" and verdict.root is not None and (job := _JOB.search(verdict.root.text)):
        return f"scontrol requeue {job[1]}, if its script goes on from {path} by itself"
    if trainer is None:
        return f"{needs}the same command, from {path}"
    return needs + trainer.command.format(path=path)


_COLUMNS = 100
_INDENT = 14
_LINE = 400  # characters of a quoted line


@dataclass(frozen=True)
class QuotedLine:
    """A line that proves something. ``number`` 0: the file as a whole."""

    file: str
    number: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}" if self.number else self.file


@dataclass(frozen=True)
class Consequence:
    """Something that followed: an id of the catalogue, how often, where first."""

    id: str
    kind: str
    role: str
    count: int
    place: str
    rank: int | None


@dataclass(frozen=True)
class FailureReport:
    """What ``paceline doctor`` says about a failure. ``kind``: one of the ten classes, or unknown.

    ``failed`` False: nothing was found, and ``state`` says what the logs show.
    """

    failed: bool
    state: str = ""
    kind: str = ""
    id: str = ""
    cause: str = ""
    rank: int | None = None
    node: str = ""
    evidence: tuple[QuotedLine, ...] = ()
    remedy: str = ""
    lost: str = ""
    go_on: str = ""
    consequences: tuple[Consequence, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self, clean: Redactor) -> str:
        """Return it as lines for a terminal."""
        if not self.failed:
            return "\n".join([f"nothing found: {self.state}", *self.notes])
        name = f" [{self.id}]" if self.id else ""
        lines = [f"{self.kind}: {self.cause}{name}"]
        for label, value in self._rows():
            text = printable(clean(value))
            lines += textwrap.wrap(
                text, _COLUMNS, initial_indent=f"  {label:<{_INDENT - 2}}", subsequent_indent=" " * _INDENT
            )
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str]]:
        if self.rank is not None or self.node:
            rank = f"rank {self.rank}" if self.rank is not None else "rank unknown"
            yield "first", f"{rank}, node {self.node}" if self.node else rank
        for label, line in zip(("evidence", *[""] * len(self.evidence)), self.evidence, strict=False):
            yield label, f"{line.place}: {line.text.strip()[:_LINE]}"
        for label, item in zip(("followed by", *[""] * 7), self.consequences, strict=False):
            times = f" ×{item.count}" if item.count > 1 else ""
            yield label, f"{item.id}{times} ({item.kind}), first at {item.place}"
        yield "remedy", self.remedy
        yield "lost", self.lost
        yield "go on", self.go_on
        for label, note in zip(("note", *[""] * len(self.notes)), self.notes, strict=False):
            yield label, note

    def to_json(self, clean: Redactor) -> dict[str, Json]:
        """Plain JSON types."""
        return {
            "failed": self.failed,
            "state": self.state,
            "class": self.kind or None,
            "id": self.id or None,
            "cause": self.cause or None,
            "rank": self.rank,
            "node": self.node or None,
            "evidence": [
                {"file": line.file, "line": line.number or None, "text": clean(line.text.strip()[:_LINE])}
                for line in self.evidence
            ],
            "remedy": self.remedy or None,
            "lost": clean(self.lost) or None,
            "go_on": clean(self.go_on) or None,
            "followed_by": [
                {
                    "id": item.id,
                    "class": item.kind,
                    "role": item.role,
                    "count": item.count,
                    "first": item.place,
                    "rank": item.rank,
                }
                for item in self.consequences
            ],
            "notes": [clean(note) for note in self.notes],
        }


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
