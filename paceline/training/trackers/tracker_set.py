"""The trackers of a run: fed without waiting, ended within a stated time; what befalls one is said once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.training import codes
from paceline.training.trackers.tracker_thread import MOST_WAITING, TrackerThread

SLOW_SECONDS = 30.0  # that one call may take before it is said
END_SECONDS = 10.0  # for all trackers together, at the end of the run: half to send, half to close
Report = Callable[[Diagnostic], None]
_KEY = "training.report_to"
_ALL_THERE = "the run's events and plots have every step"


class Trackers:
    """Feeds ``threads``. All its methods are called by the thread that trains."""

    def __init__(self, threads: Sequence[TrackerThread], report: Report) -> None:
        self._threads, self._report = list(threads), report
        self._reported: set[tuple[str, Code]] = set()
        self.abandoned: tuple[
            str, ...
        ] = ()  # that failed, or have not ended: what they left may hang an exit

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._threads)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand a point to every tracker, and report what has happened to them since."""
        for one in self._threads:
            one.give(step, values)
            self._report_news(one)

    def close(self) -> None:
        """Let each send what waits and close; one that is silent for as long already is not waited for."""
        begun = time.monotonic()
        for one in self._threads:
            one.end(END_SECONDS / 2)
        for one in self._threads:
            if one.waits_seconds() < END_SECONDS:
                one.join(begun + END_SECONDS)
        for one in self._threads:
            self._report_news(one)
            self._report_unsent(one)
        self.abandoned = tuple(one.name for one in self._threads if one.is_alive or one.error is not None)
        self._threads = []

    def _report_news(self, one: TrackerThread) -> None:
        if one.error is not None:
            what = f"{one.name} failed and is not used from here on; events and logs continue"
            found = f"{type(one.error).__name__}: {one.error}"[:400]
            self._report_once(one, codes.TRACKER_FAILED, what, found, "see its own logs")
            return
        if one.waits_seconds() > SLOW_SECONDS:
            what = (
                f"{one.name} has not answered for {SLOW_SECONDS:.0f} s; training goes on, and up to"
                f" {MOST_WAITING} points wait for it"
            )
            self._report_once(
                one, codes.TRACKER_SLOW, what, "", f"check its server and the network; {_ALL_THERE}"
            )
        if one.dropped:
            what = f"{one.name} is too slow: {MOST_WAITING} points wait for it, further ones are dropped"
            self._report_once(
                one, codes.TRACKER_DROPPED, what, "", f"set a larger logging_steps; {_ALL_THERE}"
            )

    def _report_unsent(self, one: TrackerThread) -> None:
        if one.error is not None or not (one.unsent or one.is_alive):
            return
        end = f"within {END_SECONDS:.0f} s of the run's end"
        late = one.unsent - one.dropped
        parts = [f"{one.dropped} were dropped"] * bool(one.dropped)
        parts += [f"{late} were not sent {end}"] * bool(late)
        what = (
            f"{one.name} did not get {one.unsent} points of this run"
            if one.unsent
            else f"{one.name} was not closed {end}: it may miss the last points"
        )
        self._report_once(one, codes.TRACKER_UNSENT, what, ", ".join(parts), _ALL_THERE)

    def _report_once(self, one: TrackerThread, code: Code, what: str, found: str, hint: str) -> None:
        if (one.name, code) not in self._reported:
            self._reported.add((one.name, code))
            self._report(code(what, _KEY, found, hint, Severity.WARNING))
