"""The trackers that a config names: each in a separate thread, so that none can delay or end a run."""

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
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import load_attr
from paceline.plan import codes as plan_codes
from paceline.plan.packages import has_key, meant_offline
from paceline.training import codes
from paceline.training.reporting.tracker_backends import ADAPTERS, TrackedRun, Tracker

T = TypeVar("T")
MOST_WAITING = 1000  # points that wait for a tracker; further ones are dropped


class TrackerThread:
    """Passes points to one tracker. Only ``join`` waits."""

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
        """Let it send queued points for ``seconds``, then close the tracker."""
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
        """The number of points that the tracker did not get: dropped, skipped at the end, or still queued."""
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
        self._reported: set[tuple[str, str]] = set()
        self.abandoned: tuple[
            str, ...
        ] = ()  # that failed, or have not ended: what they left may hang an exit

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(thread.name for thread in self._threads)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass a point to every tracker, and report their failures since the last call."""
        for thread in self._threads:
            thread.give(step, values)
            self._report_news(thread)

    def close(self) -> None:
        """Let each tracker send its queue and close; do not wait for one that is already silent for that
        long."""
        begun = time.monotonic()
        for thread in self._threads:
            thread.end(END_SECONDS / 2)
        for thread in self._threads:
            if thread.waits_seconds() < END_SECONDS:
                thread.join(begun + END_SECONDS)
        for thread in self._threads:
            self._report_news(thread)
            self._report_unsent(thread)
        self.abandoned = tuple(t.name for t in self._threads if t.is_alive or t.error is not None)
        self._threads = []

    def _report_news(self, thread: TrackerThread) -> None:
        name = thread.name
        if thread.error is not None:
            self._report_once(name, _failed(name, thread.error))
            return
        if thread.waits_seconds() > SLOW_SECONDS:
            what = (
                f"{name} has not answered for {SLOW_SECONDS:.0f} s; training goes on, and up to"
                f" {MOST_WAITING} points wait for it"
            )
            hint = f"check its server and the network; {_ALL_THERE}"
            self._report_once(name, codes.TRACKER_SLOW(what, _KEY, "", hint, Severity.WARNING))
        if thread.dropped:
            what = f"{name} is too slow: {MOST_WAITING} points wait for it, further ones are dropped"
            hint = f"set a larger logging_steps; {_ALL_THERE}"
            self._report_once(name, codes.TRACKER_DROPPED(what, _KEY, "", hint, Severity.WARNING))

    def _report_unsent(self, thread: TrackerThread) -> None:
        name, unsent = thread.name, thread.unsent
        if thread.error is not None or not (unsent or thread.is_alive):
            return
        end = f"within {END_SECONDS:.0f} s of the run's end"
        late = unsent - thread.dropped
        parts = [f"{thread.dropped} were dropped"] * bool(thread.dropped)
        parts += [f"{late} were not sent {end}"] * bool(late)
        what = (
            f"{name} did not get {unsent} points of this run"
            if unsent
            else f"{name} was not closed {end}: it may miss the last points"
        )
        finding = codes.TRACKER_UNSENT(what, _KEY, ", ".join(parts), _ALL_THERE, Severity.WARNING)
        self._report_once(name, finding)

    def _report_once(self, name: str, finding: Diagnostic) -> None:
        if (name, finding.code) not in self._reported:
            self._reported.add((name, finding.code))
            self._report(finding)


def _failed(name: str, error: BaseException) -> Diagnostic:
    return codes.TRACKER_FAILED(
        f"{name} failed and is not used from here on; events and logs continue",
        _KEY,
        f"{type(error).__name__}: {error}"[:400],
        "see its own logs",
        Severity.WARNING,
    )


def own_tracker(name: str) -> Callable[..., Tracker]:
    """Return the class of a tracker of the user's own, ``module:Class``.

    Raises ConfigError if it cannot be imported, has no ``log`` and ``close``, or takes other arguments.
    """
    tracker: Any = load_attr(name)
    arguments = inspect.signature(tracker).parameters if callable(tracker) else {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    if all(callable(getattr(tracker, part, None)) for part in ("log", "close")) and (
        takes_all or {"run_dir", "name", "config"} <= set(arguments)
    ):
        return tracker
    raise ConfigError(codes.TRACKER_NOT_ONE(_KEY, repr(tracker)[:200], name=name))


def open_trackers(
    report_to: Sequence[str],
    tracked: TrackedRun,
    *,
    project: str | None,
    environ: Mapping[str, str],
    report: Report,
) -> Trackers:
    """Return the trackers of ``report_to``, each in its thread; ``report`` gets their failures.

    Packages are imported here, before the first step and in the training thread: an import in another thread
    could see half-imported modules. Everything else runs in the tracker's thread.
    """
    threads: list[TrackerThread] = []
    for name in names_of(tuple(report_to)):
        # without a key, or with its own variable set to offline, it records for later
        has_login = name not in TRACKERS or has_key(name, environ) or meant_offline(name, environ)
        run = replace(
            tracked,
            project=project_of(name, project, environ),
            online=has_login,
            address=environ.get("MLFLOW_TRACKING_URI", ""),
        )
        try:
            make = partial(_own, own_tracker(name), run) if ":" in name else _built_in(name, run)
        except ImportError as error:
            if ALL not in report_to:
                report(
                    plan_codes.TRACKER_NOT_INSTALLED(
                        f"{name} is not installed: the run continues without it",
                        _KEY,
                        str(error),
                        f"{TRACKERS[name].install}, or remove '{name}'",
                        Severity.WARNING,
                    )
                )
        except Exception as error:  # a package may raise anything while it is imported
            report(_failed(name, error))
        else:
            threads.append(TrackerThread(name, make))
            if name in TRACKERS and not has_login:
                facts = TRACKERS[name]
                report(
                    plan_codes.TRACKER_OFFLINE(
                        f"{name} records offline: {facts.key} is not set",
                        str(tracked.run.root / name),
                        hint=f"{facts.later}, in that folder, uploads it later",
                        severity=Severity.NOTE,
                    )
                )
    return Trackers(threads, report)


def _built_in(name: str, run: TrackedRun) -> Callable[[], Tracker]:
    importlib.import_module(ADAPTERS[name].imports)
    return partial(ADAPTERS[name], run)


def _own(cls: Callable[..., Tracker], run: TrackedRun) -> Tracker:
    return cls(run_dir=run.run.root, name=run.name, config=dict(run.config))
