"""The report on logs or on a run, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.json_types import Json
from paceline.runlog.redact import Redactor, printable

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
