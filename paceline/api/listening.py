"""Hand the events of a run that goes on to a function, from a thread of its own: it cannot slow the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from paceline.api import codes
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.runlog.eventlog import EventTail
from paceline.runlog.events import Event

POLL_SECONDS = 0.1
LATE_SECONDS = 30.0  # after the end of the run, for what is still to be heard

OnEvent = Callable[[Event], object]


class Listener:
    """A context: inside, ``hear`` gets every event that is written to ``path``, in order, and at the end all
    that is left. ``problem``: why it was not called to the end, or None.
    """

    def __init__(self, path: Path, hear: OnEvent, late_seconds: float = LATE_SECONDS) -> None:
        self.problem: Diagnostic | None = None
        self._tail, self._hear, self._late = EventTail(path), hear, late_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-on-event", daemon=True)

    def __enter__(self) -> Listener:
        self._tail.poll()  # what earlier attempts wrote
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(self._late)
        if self._thread.is_alive():
            what = f"{_name(self._hear)} is still busy {self._late:g} s after the end of the run"
            hint = "do slow work after train(…) has returned, with Run.history"
            self.problem = codes.API_LISTENER(what, "on_event", "", hint, Severity.WARNING)

    def _run(self) -> None:
        while True:
            last = self._over.is_set()  # read before the poll, so that what was written until then is heard
            for record in self._tail.poll():
                try:
                    self._hear(record.event)
                except Exception as exc:  # a user's function may raise anything
                    what = f"{_name(self._hear)} raised an exception and is not called again"
                    found = f"{type(exc).__name__}: {exc}"[:300]
                    self.problem = codes.API_LISTENER(what, "on_event", found, severity=Severity.WARNING)
                    return
            if last:
                return
            self._over.wait(POLL_SECONDS)


def _name(function: OnEvent) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
