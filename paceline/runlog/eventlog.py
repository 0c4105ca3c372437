"""Write and read event files: one JSON object per line, appended and flushed to the kernel at once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import open_run_file, written_from
from paceline.core.json_types import NO_UTF8
from paceline.runlog import codes
from paceline.runlog.appended import Appended, OnRefusal
from paceline.runlog.events import Event, Notice, from_json, json_safe, to_json

MAX_LINE_BYTES = 4 * 1024 * 1024  # longer lines are skipped
_BLOCK_BYTES = 8 << 20  # of a file that is read at once


@dataclass(frozen=True)
class Record:
    """An event, the time it was written (unix seconds), and the rank that wrote it."""

    time: float
    rank: int
    event: Event


class EventLog:
    """The event file of one rank. Thread-safe.

    A full disk does not end the run: ``on_refusal`` is called, and once writing works again, a notice in the
    file gives the number of lost events.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        *,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.time,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self.path = path
        self.rank = rank
        self.untold = 0  # lost events that no notice in the file covers yet
        self._redact = redact
        self._clock = clock
        self._lock = threading.Lock()
        self._file = Appended(path, on_refusal)

    @property
    def lost(self) -> int:
        """The number of events that could not be written."""
        return self._file.lost

    def write(self, event: Event) -> None:
        """Append one event, visible to readers on return. Does nothing after ``close``."""
        with self._lock:
            if not self._file.is_open:
                return
            if self.untold and self._file.append(self._line(Notice(self._lost_diagnostic())), counts=False):
                self.untold = 0
            if not self._file.append(self._line(event)):
                self.untold += 1

    def close(self) -> None:
        """Fsync and close the file. Safe to call twice."""
        with self._lock:
            self._file.close(durable=True)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _line(self, event: Event) -> bytes:
        data = {"time": round(self._clock(), 6), "rank": self.rank, **json_safe(to_json(event), self._redact)}
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", NO_UTF8) + b"\n"

    def _lost_diagnostic(self) -> Diagnostic:
        return codes.RUNLOG_EVENTS_LOST(
            f"{self.untold} events could not be written",
            where=str(self.path),
            severity=Severity.WARNING,
            hint="free disk space",
        )


def read_events(path: Path) -> list[Record]:
    """Return all readable events of a file, oldest first; skip incomplete and foreign lines.

    A missing file has no events.
    """
    return EventTail(path).poll()


class EventTail:
    """Read an event file incrementally: each ``poll`` returns the events completed since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._inode: tuple[int, int] | None = None

    def poll(self) -> list[Record]:
        """Return new events, oldest first; none while the file does not exist."""
        try:
            with open_run_file(self.path) as file:
                info = os.fstat(file.fileno())
                inode = (info.st_dev, info.st_ino)
                if inode != self._inode or info.st_size < self._offset:  # replaced or truncated: start over
                    self._inode, self._offset, self._rest = inode, 0, b""
                return list(self._records(file))
        except FileNotFoundError:
            return []

    def _records(self, file: BufferedReader) -> Iterator[Record]:
        while True:
            begin = written_from(file, self._offset)
            file.seek(begin)
            block = file.read(_BLOCK_BYTES)
            if begin > self._offset:
                self._rest = b"{"  # the line with the hole is no event
            self._offset = begin + len(block)
            if not block:
                return
            *lines, self._rest = (self._rest + block).split(b"\n")
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b"{"  # an overlong line: make sure that its end does not parse either
            yield from (record for record in map(_parse, lines) if record is not None)


def _parse(line: bytes) -> Record | None:
    if not line.strip() or len(line) > MAX_LINE_BYTES:
        return None
    try:
        data: Any = json.loads(line)
        return Record(float(data["time"]), int(data["rank"]), from_json(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
