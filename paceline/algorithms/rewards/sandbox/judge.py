"""The judge's process: runs the tests of a row, and calls the program's functions in another process.

Results are plain values, rebuilt here, or proxies of objects that stay in the program. A proxy equals only
itself and has no truth value, so that only plain values decide. The tests pass if they run to their end
without an exception and have called the program.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import io
import itertools
import socket
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from paceline.algorithms.rewards.sandbox.names import PROGRAM_MODULES, asked_names, used_as_modules
from paceline.algorithms.rewards.sandbox.plain import NotPlain, decode, encode, receive, send
from paceline.algorithms.rewards.sandbox.program import Text

_CALL = "__call_for_its_effect__"
_USUAL_NAMES = {"np": "numpy", "pd": "pandas"}
_ENDS_A_LOOP = (StopIteration, StopAsyncIteration)  # would silently end a map or generator of the tests
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MAX_ITEMS = 1_000_000  # of an iterator


class ProgramError(Exception):
    """The program raised an exception that Python does not define, or has ended."""


class Unsuitable(Exception):
    """The tests cannot be used with a program in another process; this does not depend on the program."""


def run_tests(text: str, channel: socket.socket) -> dict[str, str]:
    """Run the tests. Returns the verdict: ``passed``, ``failed`` or ``unsuitable``, with the reason."""
    program = RemoteProgram(channel)
    try:
        names = program.hello()
        _run(text, program, names)
    except Unsuitable as error:
        return {"unsuitable": str(error)}
    except BaseException as error:  # noqa: BLE001 - any error, an invalid reply or a dead program: not passed
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return {"passed": ""} if program.num_requests else {"unsuitable": "the tests ask nothing of the program"}


def _run(text: str, program: RemoteProgram, names: list[str]) -> None:
    tree = ast.parse(text)
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    for name in PROGRAM_MODULES:
        sys.modules[name] = ProgramModule(name, program, names)
    space = vars(module)
    space[_CALL] = call_for_its_effect
    modules = used_as_modules(tree)
    for name in sorted(asked_names(tree)):
        found = _resolved(name, program, names, name in modules)
        if found is not _NOT_THERE:
            space[name] = found
    # Run the module, then its test functions and classes
    Text(ast.unparse(ast.fix_missing_locations(_EffectCalls().visit(tree)))).exec_module(module)
    for function in [
        v for k, v in space.items() if k.startswith("test") and isinstance(v, types.FunctionType)
    ]:
        function()
    for kind in [v for v in space.values() if isinstance(v, type) and v.__module__ == "tests"]:
        _run_class(kind)


_NOT_THERE = object()


def _resolved(name: str, program: RemoteProgram, names: list[str], module: bool) -> Any:
    """Resolve a name that the tests use but do not define: a standard module, else the program's."""
    if module and (name in sys.stdlib_module_names or name in _USUAL_NAMES):
        return importlib.import_module(_USUAL_NAMES.get(name, name))
    return program.named(name) if name in names else _NOT_THERE


def _run_class(kind: type) -> None:
    """Run a class of tests, unittest's or plain."""
    if issubclass(kind, unittest.TestCase):
        found = unittest.TextTestRunner(stream=io.StringIO()).run(
            unittest.defaultTestLoader.loadTestsFromTestCase(kind)
        )
        if not found.wasSuccessful() or found.skipped:
            raise AssertionError(f"{kind.__name__}: {len(found.failures)} failed, {len(found.errors)} raised")
    elif kind.__name__.startswith("Test"):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("test"):
                case = kind()
                getattr(case, "setup_method", lambda: None)()
                getattr(case, name)()


class RemoteProgram:
    """The program at the other end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._functions: dict[int, Callable[..., Any]] = {}
        self._numbers = itertools.count(1)
        self.num_requests = 0

    def hello(self) -> list[str]:
        """Wait until the program has run; return the names it defines. Raises ProgramError if it failed."""
        message = receive(self._channel)
        if not isinstance(message, dict) or not isinstance(message.get("names"), list):
            raise ProgramError(str(message)[:300])
        return [name for name in message["names"] if isinstance(name, str)]

    def request(
        self, what: str, *arguments: Any, named: dict[str, Any] | None = None, keep: bool = False
    ) -> Any:
        """Return the program's reply; with ``keep`` its changes to lists, dicts and sets go into the
        arguments.
        """
        reply = self._reply(what, arguments, named, keep)
        if keep and "arguments" in reply:
            for given, after in zip(arguments[1:], decode(reply["arguments"], self._received), strict=True):
                _become(given, after)
        return decode(reply["value"], self._received)

    def named(self, name: str) -> Any:
        """Return what the program calls ``name``.

        Parts of the standard library come from this process, under their real name.
        """
        data = self._reply("name", (name,))["value"]
        if isinstance(data, list) and data[:1] in (["module"], ["library"]):
            return _own(name, [str(part) for part in data[1:]])
        return decode(data, self._received)

    def _reply(
        self, what: str, arguments: tuple[Any, ...], named: dict[str, Any] | None = None, keep: bool = False
    ) -> dict[str, Any]:
        self.num_requests += what == "call"
        request = {"ask": what, "arguments": encode(list(arguments), self._sent)}
        if what == "call":
            request |= {"named": encode(named or {}, self._sent), "keep": keep}
        send(self._channel, request)
        while isinstance(reply := receive(self._channel), dict) and "call" in reply:
            send(self._channel, self._called_back(reply))
        if not isinstance(reply, dict) or not ("value" in reply or "raised" in reply):
            raise ProgramError("a reply that is none")
        if "raised" in reply:
            raise _exception(reply, self._received)
        return reply

    def _called_back(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a function of the tests that the program has called."""
        try:
            arguments, named = (decode(message[key], self._received) for key in ("arguments", "named"))
            return {"value": encode(self._functions[message["call"]](*arguments, **named), self._sent)}
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"[:300]}

    def _sent(self, value: Any) -> Any:
        if isinstance(value, RemoteObject):
            return ["object", object.__getattribute__(value, "_number")]
        if isinstance(value, (*_FUNCTIONS, type)):
            number = next(self._numbers)
            self._functions[number] = value
            return ["function", number]
        raise Unsuitable(f"the tests give the program an object of the class {type(value).__qualname__}")

    def _received(self, data: list[Any]) -> Any:
        if data[0] == "object" and type(data[1]) is int:
            return RemoteObject(self, data[1])
        raise NotPlain(str(data[0]))


def _own(name: str, claimed: list[str]) -> Any:
    """Return the standard module, class or function really called ``name``; the program cannot substitute
    one.
    """
    home, *inner = claimed
    if home.partition(".")[0] in (*sys.stdlib_module_names, *_USUAL_NAMES.values()):
        found = importlib.import_module(home)
        if not inner and name in (
            home.rpartition(".")[2],
            *(short for short, long in _USUAL_NAMES.items() if long == home),
        ):
            return found
        if inner == [name] and isinstance(part := getattr(found, name, None), (type, *_FUNCTIONS)):
            return part
    raise ProgramError(f"{name} is said to be {'.'.join(claimed)}")


def _become(given: Any, after: Any) -> None:
    if type(given) is list and type(after) is list:
        given[:] = after
    elif type(given) in (dict, set) and type(after) is type(given):
        given.clear()
        given.update(after)


def _exception(reply: dict[str, Any], received: Callable[[Any], Any]) -> Exception:
    """Return the program's exception as the nearest built-in class; never one that ends a process."""
    arguments = decode(reply["arguments"], received)
    for name in reply["raised"]:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_A_LOOP):
            try:
                return kind(*arguments)
            except TypeError:
                continue
    return ProgramError(f"{reply['raised'][0]}: {arguments}"[:300])


class RemoteObject:
    """Proxy of an object in the program: operations are forwarded to it, and it is never a value here."""

    __slots__ = ("_number", "_program")
    _number: int
    _program: RemoteProgram

    def __init__(self, program: RemoteProgram, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.request("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.request("set_attribute", self, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._program.request("call", self, *arguments, named=named)

    def __getitem__(self, key: Any) -> Any:
        return self._program.request("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._program.request("set_item", self, key, value)

    def __len__(self) -> int:
        return _of_kind(int, self._program.request("length", self))

    def __str__(self) -> str:
        return _of_kind(str, self._program.request("text", self))

    __repr__ = __str__

    def __iter__(self) -> Iterator[Any]:
        over = self._program.request("iterate", self)
        count = 0
        while items := _of_kind(list, self._program.request("next", over)):
            yield from items
            count += len(items)
            if count > _MAX_ITEMS:
                raise ProgramError("an iterator without an end")

    def __contains__(self, item: Any) -> bool:
        return any(item == each for each in self)

    def __bool__(self) -> bool:
        raise TypeError("an object of the program's is neither true nor false")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def _of_kind(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise ProgramError(f"no {kind.__name__}")
    return value


def call_for_its_effect(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function whose result is not used.

    A program's changes to lists, dicts and sets are copied into the arguments.
    """
    if isinstance(function, RemoteObject):
        return function._program.request("call", function, *arguments, named=named, keep=True)
    return function(*arguments, **named)


class _EffectCalls(ast.NodeTransformer):
    """Rewrites the statement ``f(a)`` to ``call_for_its_effect(f, a)``."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Call):
            call = node.value
            name = ast.Name(_CALL, ast.Load())
            return ast.Expr(ast.Call(name, [call.func, *call.args], call.keywords))
        return node


class ProgramModule(types.ModuleType):
    """``import solution``: the program's names as attributes of a module."""

    def __init__(self, name: str, program: RemoteProgram, names: list[str]) -> None:
        super().__init__(name)
        self.__dict__["__all__"] = [name for name in names if not name.startswith("_")]
        self.__dict__["_asked"] = program

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["__all__"] and name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_asked"].named(name)
