"""The trackers that a config names: each in a thread of its own, so that none can delay or end a run."""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from paceline.config.registries.trackers import ALL, TRACKERS, names_of, project_of
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import load_attr
from paceline.plan import codes as plan_codes
from paceline.plan.packages import has_key, meant_offline
from paceline.training import codes
from paceline.training.reporting.tracker_backends import ADAPTERS, TrackedRun, Tracker

T = TypeVar("T")
MOST_WAITING = 1000  # points that wait for a tracker; further ones are dropped


class TrackerThread:
    """Hands points to one tracker. Nothing here waits, but for ``join``."""

    def __init__(self, name: str, make: Callable[[], Tracker], capacity: int = MOST_WAITING) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.dropped = 0  # points that found no room
        self.skipped = 0  # points that waited until there was no time left
        self._make, self._capacity = make, capacity
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque()
        self._changed = threading.Condition()
        self._ends: float | None = None  # monotonic time at which points stop being sent; None: no end yet
        self._calls_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def give(self, step: int, values: Mapping[str, float]) -> None:
        """Queue a point, or count it as dropped."""
        if self.error is not None:
            return
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                return
            self._waiting.append((step, values))
            self._changed.notify()

    def waits_seconds(self) -> float:
        """How long the call in progress has taken; 0 if there is none."""
        since = self._calls_since
        return 0.0 if since is None else time.monotonic() - since

    def end(self, seconds: float) -> None:
        """Let it send for ``seconds`` what waits, then close the tracker."""
        with self._changed:
            self._ends = time.monotonic() + seconds
            self._changed.notify()

    def join(self, until: float) -> None:
        """Wait for the thread, until the monotonic time ``until`` at most."""
        self._thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def unsent(self) -> int:
        """Points that the tracker has not got: dropped, skipped at the end, or still waiting."""
        return self.dropped + self.skipped + len(self._waiting)

    def _run(self) -> None:
        try:
            tracker = self._timed(self._make)
            while (point := self._next()) is not None:
                step, values = point
                self._timed(partial(tracker.log, step, values))
            self._timed(tracker.close)
        except BaseException as error:  # noqa: BLE001 - a package may raise anything, SystemExit too
            self.error = error
            with self._changed:
                self._waiting.clear()

    def _timed(self, call: Callable[[], T]) -> T:
        self._calls_since = time.monotonic()
        try:
            return call()
        finally:
            self._calls_since = None

    def _next(self) -> tuple[int, Mapping[str, float]] | None:
        """Wait for a point; None when all has been sent after ``end``, or its time is over."""
        with self._changed:
            while not self._waiting and self._ends is None:
                self._changed.wait()
            if self._ends is not None and time.monotonic() > self._ends:
                self.skipped += len(self._waiting)
                self._waiting.clear()
            return self._waiting.popleft() if self._waiting else None


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


_KEY = "training.report_to"


def own_tracker(name: str) -> Callable[..., Tracker]:
    """Return the class of a tracker of the user's own, ``module:Class``.

    Raises ConfigError if it cannot be imported, has no ``log`` and ``close``, or takes other arguments.
    """
    found: Any = load_attr(name)
    arguments = inspect.signature(found).parameters if callable(found) else {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    if all(callable(getattr(found, part, None)) for part in ("log", "close")) and (
        takes_all or {"run_dir", "name", "config"} <= set(arguments)
    ):
        made: Callable[..., Tracker] = found
        return made
    raise ConfigError(codes.TRACKER_NOT_ONE(_KEY, repr(found)[:200], name=name))


def open_trackers(
    report_to: Sequence[str],
    tracked: TrackedRun,
    *,
    project: str | None,
    environ: Mapping[str, str],
    report: Report,
) -> Trackers:
    """Return the trackers that ``report_to`` names, each in its thread; ``report`` what befalls them.

    Packages are imported here, before the first step and by the thread that trains: an import beside its
    own could meet modules half made. All else of a tracker happens in its thread.
    """
    threads: list[TrackerThread] = []
    for name in names_of(tuple(report_to)):
        of_this = replace(tracked, project=project_of(name, project, environ))
        try:
            make = (
                partial(_own, own_tracker(name), of_this)
                if ":" in name
                else _built_in(name, of_this, environ)
            )
        except ImportError as exc:
            if ALL not in report_to:
                report(_not_installed(name, exc))
        except Exception as exc:  # a package may raise anything while it is imported
            what = f"{name} failed and is not used from here on; events and logs continue"
            found = f"{type(exc).__name__}: {exc}"[:400]
            report(codes.TRACKER_FAILED(what, _KEY, found, "see its own logs", Severity.WARNING))
        else:
            threads.append(TrackerThread(name, make))
            if name in TRACKERS and not has_key(name, environ) and not meant_offline(name, environ):
                report(_offline(name, of_this))
    return Trackers(threads, report)


def _built_in(name: str, tracked: TrackedRun, environ: Mapping[str, str]) -> Callable[[], Tracker]:
    adapter = ADAPTERS[name]
    importlib.import_module(adapter.imports)
    online = has_key(name, environ) or meant_offline(name, environ)  # then its own variable decides
    known = replace(tracked, online=online, address=environ.get("MLFLOW_TRACKING_URI", ""))
    return partial(adapter, known)


def _own(cls: Callable[..., Tracker], tracked: TrackedRun) -> Tracker:
    return cls(run_dir=tracked.run.root, name=tracked.name, config=dict(tracked.config))


def _not_installed(name: str, exc: ImportError) -> Diagnostic:
    what = f"{name} is not installed: the run continues without it"
    hint = f"{TRACKERS[name].install}, or remove '{name}'"
    return plan_codes.TRACKER_NOT_INSTALLED(what, _KEY, str(exc), hint, Severity.WARNING)


def _offline(name: str, tracked: TrackedRun) -> Diagnostic:
    facts = TRACKERS[name]
    what = f"{name} records offline: {facts.key} is not set"
    where = str(tracked.run.root / name)
    return plan_codes.TRACKER_OFFLINE(
        what, where, hint=f"{facts.later}, in that folder, uploads it later", severity=Severity.NOTE
    )
