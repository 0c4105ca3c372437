"""Everything one rank writes about its run, behind one object."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.rundir import RunDir
from paceline.runlog.eventlog import EventLog
from paceline.runlog.events import Error, Event, Notice
from paceline.runlog.levels import is_written
from paceline.runlog.lines import line_of
from paceline.runlog.redact import Redactor
from paceline.runlog.textlog import TextLog


class RunLog:
    """Events and text of one rank: ``events/``, ``logs/rank-XXXXX.log`` and, on rank 0, ``logs/training.log``.

    ``redact`` takes out what must not appear in any file (``redact.Redactor``); ``least`` is the least severe line of text that is
    written (``training.log_level``): events are written all the same.
    """

    def __init__(self, run: RunDir, rank: int, redact: Callable[[str], str] | None = None, least: str = "info") -> None:
        redact, self._least = redact or Redactor(), least
        self.events = EventLog(run.events(rank), rank, redact=redact)
        self.rank_text = TextLog(run.rank_log(rank), redact=redact)
        self.training_text = TextLog(run.training_log, redact=redact) if rank == 0 else None

    def write(self, event: Event, *, level: str = "") -> None:
        """Record an event, and put it into words at ``level``, or at its own."""
        self.events.write(event)
        level = level or level_of(event)
        line = line_of(event) if is_written(level, self._least) else None
        if line is not None:
            self.say(line, level)

    def say(self, text: str, level: str = "info") -> None:
        """A line for people only."""
        if not is_written(level, self._least):
            return
        self.rank_text.line(text, level)
        if self.training_text is not None:
            self.training_text.line(text, level)

    def close(self) -> None:
        """Flush and close all files; calling it twice is harmless."""
        self.events.close()
        self.rank_text.close()
        if self.training_text is not None:
            self.training_text.close()


def level_of(event: Event) -> str:
    """How severe an event's line is."""
    if isinstance(event, Notice):
        return event.diagnostic.severity.value
    return "error" if isinstance(event, Error) else "info"
