"""All logs that one rank writes about its run, behind one object."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import refusal_of
from paceline.core.rundir import RunDir
from paceline.runlog import codes
from paceline.runlog.appended import Appended, OnRefusal
from paceline.runlog.events import Error, Event, EventLog, Notice
from paceline.runlog.lines import line_of
from paceline.runlog.redact import Redactor, printable

_LOGGER = logging.getLogger(__name__)


class RunLog:
    """One rank's events and text: ``events/``, ``logs/rank-XXXXX.log`` and on rank 0 ``logs/training.log``.

    ``redact`` removes secrets from every file (``redact.Redactor``); ``least``: the minimum level of text
    lines (``training.log_level``), events are always written. ``warn`` is called once for each kind of write
    error. With ``leads`` False it is not called for errors of the whole disk, which the node's first rank
    reports. Raises OSError if the files cannot be opened.
    """

    def __init__(
        self,
        run: RunDir,
        rank: int,
        redact: Callable[[str], str] | None = None,
        least: str = "info",
        *,
        warn: Callable[[Diagnostic], None] | None = None,
        leads: bool = True,
    ) -> None:
        redact, self._least = redact or Redactor(), least
        self._warn, self._leads = warn or (lambda d: _LOGGER.warning("%s", d.render())), leads
        self._warned: set[str] = set()
        self.events = EventLog(run.events(rank), rank, redact=redact, on_refusal=self._refused)
        self.rank_text = TextLog(run.rank_log(rank), redact=redact, on_refusal=self._refused)
        self._texts = [self.rank_text]
        if rank == 0:
            self._texts.append(TextLog(run.training_log, redact=redact, on_refusal=self._refused))

    def lost(self) -> Diagnostic | None:
        """A diagnostic of what could not be written, for the end of the run; None if nothing was lost."""
        texts = sum(text.lost for text in self._texts)
        if not self.events.lost and not texts:
            return None
        losses = f"{self.events.lost} events and {texts} lines of the logs could not be written"
        consequence = "the reason is above; plots and logs have a gap there"
        return codes.RUNLOG_EVENTS_LOST(
            losses, str(self.events.path), hint=consequence, severity=Severity.WARNING
        )

    def _refused(self, path: Path, error: OSError) -> None:
        gone = isinstance(error, FileNotFoundError)
        why = None if gone else refusal_of(error, path)
        kind = "deleted" if gone else why.kind if why else str(error.errno)
        # Warn once per kind of error; errors of the whole disk on one rank per node.
        if kind in self._warned or (why is not None and why.of_the_disk and not self._leads):
            return
        self._warned.add(kind)
        if gone:
            message = (
                "a log was deleted while it was being written: its content is lost; a new one is"
                " started, and training continues"
            )
            hint = "leave the files of a run in place until it has ended"
        else:
            reason = why.reason if why is not None else "the system refuses it"
            message = (
                f"{reason}: events and logs are lost from here on, until they can be written again;"
                " training continues"
            )
            hint = why.hint if why is not None else "check the disk and its file system"
        self._warn(
            codes.RUNLOG_LOST(message, str(path), error.strerror or str(error), hint, Severity.WARNING)
        )

    def write(self, event: Event, *, level: str = "") -> None:
        """Record an event, and its text line at ``level`` (default: the event's own)."""
        self.events.write(event)
        level = level or level_of(event)
        line = line_of(event) if is_written(level, self._least) else None
        if line is not None:
            self.message(line, level)

    def message(self, text: str, level: str = "info") -> None:
        """Write a line to the text logs only."""
        if not is_written(level, self._least):
            return
        for log in self._texts:
            log.line(text, level)

    def close(self) -> None:
        """Flush and close all files. Safe to call twice."""
        self.events.close()
        for text in self._texts:
            text.close()


def level_of(event: Event) -> str:
    """Return the severity of an event's line."""
    if isinstance(event, Notice):
        return event.diagnostic.severity.value
    return "error" if isinstance(event, Error) else "info"


# Names as in Transformers, where `passive` keeps the level and `detail` is debug with file names and lines.
# Errors that end a run are always written.
_RANKS = {
    "detail": 0,
    "debug": 0,
    "note": 1,
    "info": 1,
    "passive": 1,
    "warning": 2,
    "error": 3,
    "critical": 3,
}


def is_written(level: str, least: str) -> bool:
    """Whether a line of ``level`` (a severity, ``info`` or ``debug``) passes the minimum level ``least``."""
    return _RANKS[level] >= _RANKS[least]


class TextLog:
    """Append timestamped lines, with secrets redacted and control characters escaped. Thread-safe.

    Never raises for a full disk: ``on_refusal`` is called.
    """

    def __init__(
        self,
        path: Path,
        *,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.time,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self.path = path
        self._redact = redact or (lambda text: text)
        self._clock = clock
        self._lock = threading.Lock()
        self._file = Appended(path, on_refusal)

    @property
    def lost(self) -> int:
        """The number of lines that could not be written."""
        return self._file.lost

    def line(self, text: str, level: str = "info") -> None:
        """Append ``text``; its further lines are indented, so that no content can pass for a log line."""
        now = self._clock()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
        first, *rest = printable(self._redact(text), keep_newlines=True).split("\n")
        head = f"{stamp} {level:<7} {first}"
        body = "\n".join([head, *(f"    | {more}" for more in rest)]) + "\n"
        with self._lock:
            self._file.append(body.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file; later lines are dropped. Safe to call twice."""
        with self._lock:
            self._file.close()
