"""In the program's own process: what a model wrote is run here, and its functions are called for whoever judges them, who sits elsewhere.

Nothing here is a secret or a wall. The program may change all of it: what it can reach is one channel, on which it says plain values.
"""

from __future__ import annotations

import atexit
import importlib.abc
import io
import itertools
import os
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from paceline.algorithms.rewards.sandbox.plain import NotPlain, decode, encode, receive, send

NAME = "solution"  # of the module that a program is
_CHUNK = 1000  # elements of an iterator in one message


class Text(importlib.abc.SourceLoader):
    """Loads a module from a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"

    def get_data(self, path: bytes | str) -> bytes:
        return self.text.encode("utf-8", "replace")


def run_script(text: str) -> int:
    """Run ``text`` as a program of its own between standard input and output, to its very end. Returns its exit status."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r"), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "replace")
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    status = _status_of(lambda: _load("__main__", text))
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any program: threads, then what is to be done at exit
    atexit._run_exitfuncs()
    own = sys.__stdout__
    return status or _status_of(sys.stdout.flush) or (0 if own is None else _status_of(own.flush))


def _status_of(act: Callable[[], object]) -> int:
    try:
        act()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever a program may raise, it has failed
        return 1
    return 0


def _load(name: str, text: str) -> dict[str, Any]:
    """The names that a program defines when it is run as the module ``name``."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    Text(text).exec_module(module)
    return vars(module)


def serve_program(text: str, channel: socket.socket) -> None:
    """Run ``text``, tell which names it defines, then answer until nobody asks any more."""
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
    """What the other side has been told of and may ask about, by number."""

    def __init__(self, names: dict[str, Any], channel: socket.socket) -> None:
        self._names, self._channel = names, channel
        self._held: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._handlers: dict[str, Callable[..., Any]] = {
            "attribute": getattr,
            "set_attribute": setattr,
            "item": lambda held, key: held[key],
            "set_item": lambda held, key, value: held.__setitem__(key, value),
            "length": len,
            "text": str,
            "iterate": iter,
            "next": lambda held: list(itertools.islice(held, _CHUNK)),
        }

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request: a value, or what was raised."""
        try:
            arguments = decode(message["arguments"], self._known)
            if message["ask"] == "call":
                return self._call(message, *arguments)
            if message["ask"] == "name":
                return {"value": encode(self._names[arguments[0]], self._named)}
            return {"value": encode(self._handlers[message["ask"]](*arguments), self._numbered)}
        except BaseException as error:  # noqa: BLE001 - it is for the tests to say what it means
            return _raised(error, self._numbered)

    def _call(self, message: dict[str, Any], function: Any, *given: Any) -> dict[str, Any]:
        arguments, named = list(given), decode(message["named"], self._known)
        reply = {"value": encode(function(*arguments, **named), self._numbered)}
        if message["keep"]:  # nobody looks at the result: what it did to its arguments is what it was called for
            reply["arguments"] = encode(arguments, self._numbered)
        return reply

    def _numbered(self, value: Any) -> Any:
        """A number for an object."""
        number = next(self._numbers)
        self._held[number] = value
        return ["object", number]

    def _named(self, value: Any) -> Any:
        """A module, or what is defined in a module of Python's own, by the name that it bears there; else a number."""
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        known = isinstance(home, str) and isinstance(name, str) and home.partition(".")[0] in sys.stdlib_module_names
        found = known and getattr(sys.modules.get(str(home)), str(name), None) is value
        return ["library", home, name] if found else self._numbered(value)

    def _known(self, data: Any) -> Any:
        """What a number that the other side sends stands for."""
        if data[0] == "object":
            return self._held[data[1]]
        if data[0] == "function":
            return lambda *arguments, **named: self._ask_back(data[1], arguments, named)
        raise NotPlain(str(data[0]))

    def _ask_back(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function of the tests', which is over there."""
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


def _raised(error: BaseException, numbered: Callable[[Any], Any]) -> dict[str, Any]:
    """What was raised, by the names of its classes."""
    try:
        arguments = encode(list(error.args), numbered)
    except BaseException:  # noqa: BLE001
        arguments = ["list"]
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "arguments": arguments}


def end(status: int) -> None:
    """Leave at once."""
    os._exit(status & 127)
