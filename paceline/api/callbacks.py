"""Pass the events of a running training to functions, each in a separate thread, so that none slows the
run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.api import codes
from paceline.api.arguments import Part, as_json, bad_argument
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json
from paceline.runlog.callback import METHODS, deliver, has_methods, read_only, requests_stop
from paceline.runlog.events import Event, EventTail

POLL_SECONDS = 0.1
LATE_SECONDS = 30.0  # after the end of the run, for what is still to be heard

OnEvent = Callable[[Event], object]


class LocalCallback:
    """A callback that is an object of this process, for a ``Listener``; ``wants_stop`` is set when it asks to
    stop."""

    def __init__(self, callback: Any, wants_stop: threading.Event) -> None:
        self.__qualname__ = getattr(callback, "__qualname__", None) or type(callback).__qualname__
        self._callback, self._wants_stop = callback, wants_stop

    def __call__(self, event: Event) -> None:
        if type(event) in METHODS:
            deliver(self._callback, read_only(event))
            if requests_stop(self._callback):
                self._wants_stop.set()


def split_callbacks(callbacks: Iterable[Part] | None) -> tuple[list[Json] | None, list[Any]]:
    """Return (those that the config names, objects of this process).

    Raises ConfigError for an object that is no callback, and for a class in place of an object.
    """
    if callbacks is None:
        return None, []
    names: list[Json] = []
    objects: list[Any] = []
    for index, callback in enumerate([callbacks] if isinstance(callbacks, (str, Mapping)) else callbacks):
        where = f"callbacks[{index}]"
        if isinstance(callback, (str, Mapping)):
            names.append(as_json(callback, where))
        elif isinstance(callback, type) or not (has_methods(callback) or callable(callback)):
            remedy = f"an object with some of {', '.join(METHODS.values())}, a function, or 'module:Class'"
            raise bad_argument(
                "a class is given, not an object of it"
                if isinstance(callback, type)
                else "this is no callback",
                where,
                repr(callback)[:200],
                remedy,
            )
        else:
            objects.append(callback)
    return names or None, objects


class Listener:
    """A context: inside, ``hear`` gets every event that is written to ``path``, in order, and the rest at the
    end. ``problem``: why it missed events, or None.
    """

    def __init__(
        self, path: Path, hear: OnEvent, late_seconds: float = LATE_SECONDS, argument: str = "on_event"
    ) -> None:
        self._argument = argument
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
            problem = f"{_name(self._hear)} is still busy {self._late:g} s after the end of the run"
            remedy = "do slow work after train(…) has returned, with Run.history"
            self.problem = codes.API_LISTENER(problem, self._argument, "", remedy, Severity.WARNING)

    def _run(self) -> None:
        while True:
            last = self._over.is_set()  # read before the poll, so that what was written until then is heard
            for record in self._tail.poll():
                try:
                    self._hear(record.event)
                except Exception as exc:  # a user's function may raise anything
                    problem = f"{_name(self._hear)} raised an exception and is not called again"
                    evidence = f"{type(exc).__name__}: {exc}"[:300]
                    self.problem = codes.API_LISTENER(
                        problem, self._argument, evidence, severity=Severity.WARNING
                    )
                    return
            if last:
                return
            self._over.wait(POLL_SECONDS)


def _name(function: OnEvent) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


class Listeners:
    """All listeners of a run in this process: on_event, and callbacks that are objects, each in its own
    thread.

    ``wants_stop`` is set when one of the callbacks asks to stop the training.
    """

    def __init__(self, on_event: OnEvent | None, callbacks: Sequence[object]) -> None:
        self.wants_stop = threading.Event()
        self._given: list[tuple[OnEvent, str]] = [] if on_event is None else [(on_event, "on_event")]
        self._given += [(LocalCallback(callback, self.wants_stop), "callbacks") for callback in callbacks]
        self._listeners: list[Listener] = []

    def open(self, stack: ExitStack, path: Path) -> None:
        """Listen to the event log ``path`` until ``stack`` is left."""
        self._listeners = [
            stack.enter_context(Listener(path, hear, argument=argument)) for hear, argument in self._given
        ]

    def problems(self) -> list[Diagnostic]:
        """Return the listeners' errors."""
        return [listener.problem for listener in self._listeners if listener.problem is not None]
