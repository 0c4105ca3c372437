"""Everything one rank writes about its run, behind one object."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.rundir import RunDir
from paceline.runlog.eventlog import EventLog
from paceline.runlog.events import Error, Event, Notice
from paceline.runlog.lines import line_of
from paceline.runlog.redact import Redactor
from paceline.runlog.textlog import TextLog


class RunLog:
    """Events and text of one rank: ``events/``, ``logs/rank-XXXXX.log`` and, on rank 0, ``logs/training.log``.

    ``redact`` takes out what must not appear in any file (``redact.Redactor``).
    """

    def __init__(self, run: RunDir, rank: int, redact: Callable[[str], str] | None = None) -> None:
        redact = redact or Redactor()
        self.events = EventLog(run.events(rank), rank, redact=redact)
        self.rank_text = TextLog(run.rank_log(rank), redact=redact)
        self.training_text = TextLog(run.training_log, redact=redact) if rank == 0 else None

    def write(self, event: Event, *, text: bool = True) -> None:
        """Record an event; with ``text`` also in words."""
        self.events.write(event)
        line = line_of(event) if text else None
        if line is not None:
            level = (
                "error"
                if isinstance(event, Error)
                else event.diagnostic.severity.value
                if isinstance(event, Notice)
                else "info"
            )
            self.say(line, level)

    def say(self, text: str, level: str = "info") -> None:
        """A line for people only."""
        self.rank_text.line(text, level)
        if self.training_text is not None:
            self.training_text.line(text, level)

    def close(self) -> None:
        """Flush and close all files; calling it twice is harmless."""
        self.events.close()
        self.rank_text.close()
        if self.training_text is not None:
            self.training_text.close()
