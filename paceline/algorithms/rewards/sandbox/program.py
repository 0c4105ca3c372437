"""The program's own process: runs what a model wrote, and calls its functions for the judge.

The judge is another process. Nothing here is secret or enforces anything: the program may change all of it.
It can reach only one channel, which carries plain values.
"""

from __future__ import annotations

import atexit
import importlib.abc
import io
import itertools
import operator
import os
import socket
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from paceline.algorithms.rewards.sandbox.plain_values import (
    NotPlain,
    decode,
    decode_call,
    encode,
    receive,
    send,
)

if TYPE_CHECKING:
    from paceline.algorithms.rewards.sandbox.plain_values import Other
    from paceline.core.json_types import Json, JsonObject

NAME = "solution"  # the program's module name
_CHUNK = 1000  # elements of an iterator in one message


class Text(importlib.abc.SourceLoader):
    """Loads a module from a string."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"

    def get_data(self, path: bytes | str) -> bytes:
        return self.text.encode("utf-8", "replace")


def run_script(text: str) -> int:
    """Run ``text`` as a script on standard input and output, with exit handlers. Returns its exit status."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r"), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "replace")
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    status = _status_of(lambda: _load("__main__", text))
    threading._shutdown()  # type: ignore[attr-defined]  # as Python exits: threads, then exit handlers
    atexit._run_exitfuncs()
    original = sys.__stdout__
    return status or _status_of(sys.stdout.flush) or (0 if original is None else _status_of(original.flush))


def _status_of(act: Callable[[], object]) -> int:
    try:
        act()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - any exception means failure
        return 1
    return 0


def _load(name: str, text: str) -> Mapping[str, object]:
    """Run a program as the module ``name`` and return the names it defines."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    Text(text).exec_module(module)
    return vars(module)


def serve_program(text: str, channel: socket.socket) -> None:
    """Run ``text``, send the names it defines, then answer requests until the channel closes."""
    try:
        names = _load(NAME, text)
    except BaseException as error:  # noqa: BLE001
        send(channel, {"failed": f"{type(error).__name__}: {error}"[:300]})
        return
    send(channel, {"names": [name for name in names if not name.startswith("__")]})
    objects = Objects(names, channel)
    while True:
        try:
            message = receive(channel)
        except EOFError:
            return
        send(channel, objects.answer(message))


class Objects:
    """The objects that the other side may refer to, by number."""

    def __init__(self, names: Mapping[str, object], channel: socket.socket) -> None:
        self._names, self._channel = names, channel
        self._held: dict[int, object] = {}
        self._numbers = itertools.count(1)
        self._handlers: dict[str, Callable[..., object]] = {
            "call": operator.call,
            "attribute": getattr,
            "set_attribute": setattr,
            "item": lambda held, key: held[key],
            "set_item": lambda held, key, value: held.__setitem__(key, value),
            "length": len,
            "text": str,
            "iterate": iter,
            "next": lambda held: list(itertools.islice(held, _CHUNK)),
        }

    def answer(self, message: JsonObject) -> JsonObject:
        """Return the reply to one request: a value, or what was raised."""
        try:
            arguments, named = decode_call(message, self._known)
            if message["ask"] == "name":
                requested = str(arguments[0])
                return {"value": encode(self._names[requested], partial(self._named, requested))}
            value = self._handlers[str(message["ask"])](*arguments, **named)
            reply: JsonObject = {"value": encode(value, self._numbered)}
            if message.get("keep"):  # a call for its effect: send back the changed arguments
                reply["arguments"] = encode(arguments[1:], self._numbered)
            return reply
        except BaseException as error:  # noqa: BLE001 - the tests decide what it means
            return _raised(error, self._numbered)

    def _numbered(self, value: object) -> Json:
        """Return the reference for an object that stays here."""
        number = next(self._numbers)
        self._held[number] = value
        return ["object", number]

    def _named(self, requested: str, value: object) -> Json:
        """Return a module or a standard definition by its real name. Else, or if it has another name here
        (``from bisect import bisect_left as f``), return a reference.
        """
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        standard = (
            isinstance(home, str) and name == requested and home.partition(".")[0] in sys.stdlib_module_names
        )
        unchanged = standard and getattr(sys.modules.get(str(home)), str(name), None) is value
        return ["library", str(home), str(name)] if unchanged else self._numbered(value)

    def _known(self, data: list[Json]) -> object:
        """Return the object that a received reference means."""
        kind, number = data
        if not isinstance(number, int) or kind not in ("object", "function"):
            raise NotPlain(str(kind))
        if kind == "object":
            return self._held[number]
        return lambda *arguments, **named: self._call_program(number, arguments, named)

    def _call_program(self, number: int, arguments: Sequence[object], named: Mapping[str, object]) -> object:
        """Call a function of the tests, in the other process."""
        send(
            self._channel,
            {
                "call": number,
                "arguments": encode(list(arguments), self._numbered),
                "named": encode(named, self._numbered),
            },
        )
        while "value" not in (message := receive(self._channel)):
            if "raised" in message:
                raise RuntimeError(str(message["raised"]))
            send(self._channel, self.answer(message))
        return decode(message["value"], self._known)


def _raised(error: BaseException, numbered: Other) -> JsonObject:
    """Describe an exception by the names of its classes and its arguments."""
    try:
        arguments = encode(list(error.args), numbered)
    except BaseException:  # noqa: BLE001
        arguments = ["list"]
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "arguments": arguments}


def end(status: int) -> None:
    """Exit at once."""
    os._exit(status & 127)
