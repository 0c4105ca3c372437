"""Parts of one's own as arguments: a name goes to the ranks, an object of this process is called here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from paceline.api import codes
from paceline.api.given import as_json
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.runlog.callback import METHODS, asks_to_stop, deliver, has_methods, read_only
from paceline.runlog.events import Event

#: A part of a training: its name, or what the user wrote (a function, a class, a spec).
Part: TypeAlias = object


class LocalCallback:
    """A callback that is an object of this process, for a ``Listener``; ``wants_stop`` is set by its wish."""

    def __init__(self, callback: Any, wants_stop: threading.Event) -> None:
        self.__qualname__ = getattr(callback, "__qualname__", None) or type(callback).__qualname__
        self._callback, self._wants_stop = callback, wants_stop

    def __call__(self, event: Event) -> None:
        if type(event) in METHODS:
            deliver(self._callback, read_only(event))
            if asks_to_stop(self._callback):
                self._wants_stop.set()


def split_callbacks(callbacks: Iterable[Part] | None) -> tuple[list[Json] | None, list[Any]]:
    """Return (those that the config names, objects of this process).

    Raises ConfigError for an object that is no callback, and for a class in place of an object.
    """
    if callbacks is None:
        return None, []
    names: list[Json] = []
    objects: list[Any] = []
    for index, one in enumerate([callbacks] if isinstance(callbacks, (str, Mapping)) else callbacks):
        where = f"callbacks[{index}]"
        if isinstance(one, (str, Mapping)):
            names.append(as_json(one, where))
        elif isinstance(one, type) or not (has_methods(one) or callable(one)):
            hint = f"an object with some of {', '.join(METHODS.values())}, a function, or 'module:Class'"
            what = "a class is given, not an object of it" if isinstance(one, type) else "this is no callback"
            raise ConfigError(codes.API_ARGUMENT(what, where, repr(one)[:200], hint))
        else:
            objects.append(one)
    return names or None, objects


def named_parts(parts: Sequence[Part] | Part | None, argument: str) -> Json:
    """Return functions, classes and names as names that the ranks import; None stays None.

    Raises ConfigError (``api.not_importable``) for what no other process can import.
    """
    if parts is None:
        return None
    given = [parts] if isinstance(parts, (str, Mapping)) or callable(parts) else parts
    if not isinstance(given, Iterable):
        what = "this is neither a name nor a function"
        raise ConfigError(codes.API_ARGUMENT(what, argument, type(given).__name__, "module:function"))
    return [
        as_json(one, f"{argument}[{index}]")
        if isinstance(one, (str, Mapping))
        else importable_name(one, f"{argument}[{index}]")
        for index, one in enumerate(given)
    ]


def importable_name(part: Part, where: str) -> str:
    """Return the ``module:attr`` under which the ranks find an object of this process."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if name is None:  # an object without a name of its own, such as an algorithm's spec
        places = ((m, attr) for m, found in list(sys.modules.items()) for attr in _names_of(part, found))
        module, name = next(places, (module, None))
    here = getattr(sys.modules.get(str(module)), str(name), None)
    if module is None or module in ("__main__", "builtins") or here is not part:
        raise ConfigError(codes.API_NOT_IMPORTABLE(where, f"{module}:{name or repr(part)[:80]}"))
    return f"{module}:{name}"


def _names_of(part: object, module: object) -> list[str]:
    held = vars(module) if module is not None and hasattr(module, "__dict__") else {}
    return [name for name, value in list(held.items()) if value is part and name.isidentifier()]
