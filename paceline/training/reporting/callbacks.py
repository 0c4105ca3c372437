"""The user's callbacks on a rank, each in a separate thread, so that none can hang a training.

Training waits for quick callbacks, so they are called at their step. It no longer waits for a callback that
takes longer. One that raises is not called again. Both are reported.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json
from paceline.core.plugins.tables import load_attr
from paceline.runlog.callback import METHODS, deliver, has_methods, read_only, requests_stop
from paceline.runlog.events import Event, Step
from paceline.training import codes

WAIT_SECONDS = 1.0  # that training waits for a callback, besides ...
WAIT_SHARE = 0.1  # ... this share of the run's time
LONGEST_WAIT_SECONDS = 10.0  # in one call
END_SECONDS = 30.0  # for what is still to be done at the end of the run
MOST_WAITING = 10_000  # events, then a callback that does not return is given up

Report = Callable[[Diagnostic], None]


@dataclass(frozen=True)
class UserCallback:
    """A callback in the config: ``module:attr`` and its options."""

    name: str
    options: Mapping[str, Json] = field(default_factory=dict)


def check_callback(part: UserCallback) -> object:
    """Import a callback and return its class or function.

    Raises ConfigError if it is neither, or does not take the options.
    """
    callback = load_attr(part.name)
    where = "training.callbacks"
    if not (
        has_methods(callback) if isinstance(callback, type) else has_methods(callback) or callable(callback)
    ):
        hint = f"a class with some of the methods {', '.join(METHODS.values())}, or a function of an event"
        raise ConfigError(
            codes.CALLBACK_NOT_ONE(f"'{part.name}' is no callback", where, repr(callback)[:200], hint)
        )
    if not isinstance(callback, type):
        if part.options:
            what = f"'{part.name}' is no class, so it takes no options"
            raise ConfigError(codes.CALLBACK_NOT_ONE(what, where, ", ".join(part.options), "name a class"))
        return callback
    try:
        inspect.signature(callback).bind(**_arguments(callback, part.options, 0))
    except TypeError as error:
        what, hint = f"'{part.name}' cannot be made with these options", f"{inspect.signature(callback)}"
        raise ConfigError(codes.CALLBACK_NOT_ONE(what, where, str(error), hint)) from error
    return callback


def _arguments(cls: type, options: Mapping[str, Json], rank: int) -> dict[str, Any]:
    """Return the options, and the rank if the class asks for it."""
    wants_rank = "rank" in inspect.signature(cls).parameters and "rank" not in options
    return {**options, **({"rank": rank} if wants_rank else {})}


class Callbacks:
    """Calls ``parts`` with the events of this rank; ``should_stop`` says whether one asks to stop."""

    def __init__(self, parts: Sequence[UserCallback], rank: int, report: Report) -> None:
        """Raises PacelineError if a callback cannot be made: nothing has been trained yet."""
        self._report, self._rank = report, rank
        self._running = [_CallbackThread(part.name, self._made(part)) for part in parts]
        self._stopped_by: set[str] = set()

    def _made(self, part: UserCallback) -> object:
        callback = check_callback(part)
        if not isinstance(callback, type):
            return callback
        try:
            return callback(**_arguments(callback, part.options, self._rank))
        except Exception as error:
            what, text = f"the callback '{part.name}' raised an exception when it was made", _text(error)
            raise PacelineError(
                codes.CALLBACK_FAILED(what, self._where(), text, "correct it, or remove it")
            ) from error

    def hear(self, event: Event) -> None:
        """Pass ``event`` to every callback, if callbacks get this kind."""
        if type(event) not in METHODS or not self._running:
            return
        event = read_only(event)
        for thread in self._running:
            thread.give(event)
        for thread in self._running:
            thread.wait()
            self._report_news(thread)

    def should_stop(self) -> bool:
        """Whether any callback of this rank asks to stop the training; each is reported once."""
        for thread in self._running:
            if thread.wants_stop and thread.name not in self._stopped_by:
                self._stopped_by.add(thread.name)
                self._report(codes.CALLBACK_STOPS(self._where(), name=thread.name))
        return bool(self._stopped_by)

    def close(self) -> None:
        """End the threads; callbacks with pending events get END_SECONDS in all."""
        until = time.monotonic() + END_SECONDS
        for thread in self._running:
            thread.end()
        for thread in self._running:
            thread.join(until)
            self._report_news(thread)
        self._running = []

    def _report_news(self, thread: _CallbackThread) -> None:
        """Report a callback's errors and delays since the last call."""
        error, slow = thread.news()
        if error is not None:
            what = (
                f"the callback '{thread.name}' raised an exception and is not called again; training goes on"
            )
            self._report(
                codes.CALLBACK_FAILED(what, self._where(), _text(error), "correct it", Severity.WARNING)
            )
        if slow:
            what = f"the callback '{thread.name}' is slow ({slow}); training no longer waits for it"
            self._report(
                codes.CALLBACK_SLOW(
                    what,
                    self._where(),
                    "",
                    "it goes on beside training and hears events later; shorten it, or start a thread in it",
                    Severity.WARNING,
                )
            )

    def _where(self) -> str:
        return f"training.callbacks, rank {self._rank}"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:400]


class _CallbackThread:
    """One callback and its thread."""

    def __init__(self, name: str, callback: object) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.slow = ""  # how, once training waits no longer
        self.wants_stop = False
        self._reported: tuple[BaseException | None, str] = (None, "")
        self._callback = callback
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._idle = threading.Event()
        self._lock = threading.Lock()
        self._begun, self._waited = time.monotonic(), 0.0
        self._thread = threading.Thread(target=self._run, name=f"callback-{name}", daemon=True)
        self._thread.start()

    def give(self, event: Event) -> None:
        if self.error is not None:
            return
        if self._events.qsize() >= MOST_WAITING:
            self.error = TimeoutError(f"it has not returned while {MOST_WAITING} events happened")
            return
        with self._lock:
            self._idle.clear()
            self._events.put(event)

    def wait(self) -> None:
        """Wait until the callback has heard everything, unless it has become too slow for that."""
        if self.slow or self.error is not None:
            return
        begun = time.monotonic()
        allowed = WAIT_SECONDS + WAIT_SHARE * (begun - self._begun) - self._waited
        done = self._idle.wait(max(0.0, min(LONGEST_WAIT_SECONDS, allowed)))
        self._waited += time.monotonic() - begun
        if not done:
            self.slow = f"training has waited {self._waited:.1f} s for it"

    def end(self) -> None:
        """Let the thread end after the last event."""
        self._events.put(None)

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self.slow = f"still busy {END_SECONDS:g} s after the end of the run"

    def news(self) -> tuple[BaseException | None, str]:
        """Return (its exception, its delay), each once."""
        reported, self._reported = self._reported, (self.error, self.slow)
        return (self.error if reported[0] is None else None), (self.slow if self.slow != reported[1] else "")

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if self.error is None:
                try:
                    deliver(self._callback, event)
                    self.wants_stop = requests_stop(self._callback)
                except BaseException as error:  # noqa: BLE001 - a user's own code may raise anything
                    self.error = error
            with self._lock:
                if self._events.empty():
                    self._idle.set()


class LossWatchdog:
    """Asks to stop when the loss of ``patience`` steps in a row is above ``threshold``.

    Under ``training`` in a config::

        callbacks: [{name: "paceline.extend:LossWatchdog", options: {threshold: 5.0}}]

    A non-finite loss ends every run anyway.
    """

    should_stop = False

    def __init__(self, threshold: float, patience: int = 3) -> None:
        if patience < 1:
            raise ValueError(f"patience is a number of steps, 1 or more: {patience}")
        self.threshold, self.patience, self._above = threshold, patience, 0

    def on_step_end(self, event: Step) -> None:
        """Count the step if its loss is too high; otherwise reset the count."""
        self._above = self._above + 1 if event.loss > self.threshold else 0
        self.should_stop = self._above >= self.patience
