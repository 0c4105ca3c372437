"""The judge's process: runs the tests of a row, and calls the program's functions in another process.

Results are plain values, rebuilt here, or proxies of objects that stay in the program. Only plain values
decide: a proxy cannot be compared, has no truth value, and lacks the methods of plain values (``startswith``,
``len``). The one exception is an object that the tests made of a class of the program: ``Stack(3)``, by a
name in CapWords, as PEP 8 asks of classes. The tests pass if they run to their end without an exception and
have used the program.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from paceline.algorithms.rewards.sandbox.plain_values import (
    NotPlain,
    decode,
    decode_call,
    encode,
    receive,
    send,
)
from paceline.algorithms.rewards.sandbox.program import Text
from paceline.algorithms.rewards.sandbox.used_names import PROGRAM_MODULES, tested_names, used_as_modules

if TYPE_CHECKING:
    from paceline.algorithms.rewards.sandbox.plain_values import Plain
    from paceline.core.json_types import Json, JsonObject

    Function = Callable[..., object]
    #: What goes between the tests and the program: plain values, what stays there, functions of the tests.
    Value = Plain["RemoteObject | Function"]

T = TypeVar("T")
_CALL = "__call_for_its_effect__"
_USUAL_NAMES = {"np": "numpy", "pd": "pandas"}
_ENDS_A_LOOP = (StopIteration, StopAsyncIteration)  # would silently end a map or generator of the tests
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MAX_ITEMS = 1_000_000  # of an iterator
#: What the tests may ask of a value; the last three are NumPy's and pandas'.
_OF_VALUES = frozenset(
    name for kind in (int, float, complex, str, bytes, list, tuple, dict, set, range) for name in dir(kind)
) | {"all", "any", "equals"}


class ProgramError(Exception):
    """The program raised an exception that Python does not define, or has ended."""


class Unsuitable(Exception):
    """The tests cannot be used with a program in another process; this does not depend on the program."""


def run_tests(text: str, channel: socket.socket) -> dict[str, str]:
    """Run the tests. Returns the verdict: ``passed``, ``failed`` or ``unsuitable``, with the reason."""
    program = RemoteProgram(channel)
    try:
        complete = _run(text, program, program.hello())
    except Unsuitable as error:
        return {"unsuitable": str(error)}
    except BaseException as error:  # noqa: BLE001 - any error, an invalid reply or a dead program: not passed
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    if program.used:
        return {"passed": ""}
    # a name that the program lacks is its fault, not that of the tests
    return {"unsuitable": "they use nothing of the program"} if complete else {"failed": "a name is missing"}


def _run(text: str, program: RemoteProgram, names: list[str]) -> bool:
    """Run the tests; return whether the program defines all names that they use from it."""
    tree = ast.parse(text)
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    for name in PROGRAM_MODULES:
        sys.modules[name] = ProgramModule(name, program, names)
    space = vars(module)
    space[_CALL] = call_for_its_effect
    modules = used_as_modules(tree)
    requested = sorted(tested_names(tree))
    for name in requested:
        # A standard module, else the program's
        if name in modules and (name in sys.stdlib_module_names or name in _USUAL_NAMES):
            space[name] = importlib.import_module(_USUAL_NAMES.get(name, name))
        elif name in names:
            space[name] = program.named(name)
    # Run the module, then its test functions and classes
    Text(ast.unparse(ast.fix_missing_locations(_EffectCalls().visit(tree)))).exec_module(module)
    for function in [
        v for k, v in space.items() if k.startswith("test") and isinstance(v, types.FunctionType)
    ]:
        function()
    for kind in [v for v in space.values() if isinstance(v, type) and v.__module__ == "tests"]:
        _run_class(kind)
    return all(name in space for name in requested)


def _run_class(kind: type) -> None:
    """Run a class of tests, unittest's or plain."""
    if issubclass(kind, unittest.TestCase):
        result = unittest.TextTestRunner(stream=io.StringIO()).run(
            unittest.defaultTestLoader.loadTestsFromTestCase(kind)
        )
        if not result.wasSuccessful() or result.skipped:
            raise AssertionError(
                f"{kind.__name__}: {len(result.failures)} failed, {len(result.errors)} raised"
            )
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
        self._functions: dict[int, Function] = {}
        self._numbers = itertools.count(1)
        self.used = False  # it was called, or a standard function that it names was given to the tests

    def hello(self) -> list[str]:
        """Wait until the program has run; return the names it defines. Raises ProgramError if it failed."""
        message = receive(self._channel)
        names = message.get("names")
        if not isinstance(names, list):
            raise ProgramError(str(message)[:300])
        return [name for name in names if isinstance(name, str)]

    def request(
        self, what: str, *arguments: Value, named: Mapping[str, Value] | None = None, keep: bool = False
    ) -> Value:
        """Return the program's reply; with ``keep`` its changes to lists, dicts and sets go into the
        arguments.
        """
        reply = self._reply(what, arguments, named, keep)
        if keep and "arguments" in reply:
            changed = _of_kind(list, decode(reply["arguments"], self._received))
            for given, after in zip(arguments[1:], changed, strict=True):
                _become(given, after)
        return decode(reply["value"], self._received)

    def named(self, name: str) -> Value | types.ModuleType:
        """Return the program's object of this name.

        Standard library objects come from this process, under their real name.
        """
        data = self._reply("name", (name,))["value"]
        if isinstance(data, list) and data[:1] in (["module"], ["library"]):
            standard = _own(name, [str(part) for part in data[1:]])
            self.used |= not isinstance(standard, types.ModuleType)
            return standard
        value = decode(data, self._received)
        if isinstance(value, RemoteObject):
            value._become("class" if name[:1].isupper() else "definition")
        return value

    def _reply(
        self,
        what: str,
        arguments: Sequence[Value],
        named: Mapping[str, Value] | None = None,
        keep: bool = False,
    ) -> JsonObject:
        self.used |= what == "call"
        request: JsonObject = {"ask": what, "arguments": encode(list(arguments), self._sent)}
        if what == "call":
            request |= {"named": encode(dict(named or {}), self._sent), "keep": keep}
        send(self._channel, request)
        while "call" in (reply := receive(self._channel)):
            send(self._channel, self._called_back(reply))
        if "raised" in reply:
            raise _exception(reply, self._received)
        if "value" not in reply:
            raise ProgramError("an invalid reply")
        return reply

    def _called_back(self, message: JsonObject) -> JsonObject:
        """Run a function of the tests that the program has called."""
        try:
            arguments, named = decode_call(message, self._received)
            function = self._functions[int(str(message["call"]))]
            return {"value": encode(function(*arguments, **named), self._sent)}
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"[:300]}

    def _sent(self, value: object) -> Json:
        if isinstance(value, RemoteObject):
            return ["object", value._number]
        if isinstance(value, (*_FUNCTIONS, type)):
            number = next(self._numbers)
            self._functions[number] = value
            return ["function", number]
        raise Unsuitable(f"the tests pass the program an object of the class {type(value).__qualname__}")

    def _received(self, data: list[Json]) -> RemoteObject | Function:
        if data[0] == "object" and type(data[1]) is int:
            return RemoteObject(self, data[1])
        raise NotPlain(str(data[0]))


def _own(name: str, claimed: list[str]) -> types.ModuleType | Function:
    """Return the standard module, class or function really called ``name``; the program cannot substitute
    one.
    """
    home, *inner = claimed
    if home.partition(".")[0] in (*sys.stdlib_module_names, *_USUAL_NAMES.values()):
        module = importlib.import_module(home)
        if not inner and name in (
            home.rpartition(".")[2],
            *(short for short, long in _USUAL_NAMES.items() if long == home),
        ):
            return module
        if inner == [name] and isinstance(part := getattr(module, name, None), (type, *_FUNCTIONS)):
            return part
    raise ProgramError(f"{name} claims to be {'.'.join(claimed)}")


def _become(value: Value, after: Value) -> None:
    if type(value) is list and type(after) is list:
        value[:] = after
    if type(value) is dict and type(after) is dict:
        value.clear()
        value.update(after)
    if type(value) is set and type(after) is set:
        value.clear()
        value.update(after)


def _exception(reply: JsonObject, received: Callable[[list[Json]], RemoteObject | Function]) -> Exception:
    """Return the program's exception as the nearest built-in class; never one that ends a process."""
    arguments = _of_kind(list, decode(reply.get("arguments"), received))
    names = _of_kind(list, reply["raised"])
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_A_LOOP):
            try:
                return kind(*arguments)
            except TypeError:
                continue
    return ProgramError(f"{names[0]}: {arguments}"[:300])


class RemoteObject:
    """Proxy of an object in the program: operations are forwarded to it, and it is never a value here.

    ``_role``: a ``class`` or another ``definition`` that the tests name, an ``instance`` that they made of
    such a class, or a ``result``. A result supports no operation of a value: a cheating one could always
    answer True.
    """

    __slots__ = ("_number", "_program", "_role")
    _number: int
    _program: RemoteProgram
    _role: str

    def __init__(self, program: RemoteProgram, number: int) -> None:
        super().__setattr__("_program", program)
        super().__setattr__("_number", number)
        self._become("result")

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_VALUES:
            self._as_value(name)
        return self._program.request("attribute", self, name)

    def __setattr__(self, name: str, value: Value) -> None:
        self._program.request("set_attribute", self, name, value)

    def __call__(self, *arguments: Value, **named: Value) -> Value:
        return _called(self, self._program.request("call", self, *arguments, named=named))

    def __getitem__(self, key: Value) -> Value:
        self._as_value("[]")
        return self._program.request("item", self, key)

    def __setitem__(self, key: Value, value: Value) -> None:
        self._program.request("set_item", self, key, value)

    def __len__(self) -> int:
        self._as_value("len")
        return _of_kind(int, self._program.request("length", self))

    def __str__(self) -> str:
        self._as_value("str")
        return _of_kind(str, self._program.request("text", self))

    __repr__ = __str__

    def __iter__(self) -> Iterator[Value]:
        over = self._program.request("iterate", self)
        count = 0
        while items := _of_kind(list, self._program.request("next", over)):
            yield from items
            count += len(items)
            if count > _MAX_ITEMS:
                raise ProgramError("an endless iterator")

    def __contains__(self, item: Value) -> bool:
        return any(item == each for each in self)

    def __bool__(self) -> bool:
        raise TypeError("an object of the program is neither true nor false")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise TypeError("an object of the program equals nothing: only plain values are compared")

    __hash__ = object.__hash__

    def _become(self, role: str) -> None:
        super().__setattr__("_role", role)

    def _as_value(self, requested: str) -> None:
        """Raise TypeError for what a value would answer, unless this is an instance made by the tests."""
        if self._role == "result":
            raise TypeError(f"an object in place of a value does not answer {requested}")


def _called(function: RemoteObject, result: Value) -> Value:
    """Return a call's result; mark an object that the tests created from a class of the program as an
    instance."""
    if isinstance(result, RemoteObject) and function._role == "class":
        result._become("instance")
    return result


def _of_kind(kind: type[T], value: Value | Json) -> T:
    if isinstance(value, kind) and type(value) is kind:
        return value
    raise ProgramError(f"no {kind.__name__}")


def call_for_its_effect(function: RemoteObject | Function, *arguments: Value, **named: Value) -> object:
    """Call a function whose result is not used.

    A program's changes to lists, dicts and sets are copied into the arguments.
    """
    if isinstance(function, RemoteObject):
        result = function._program.request("call", function, *arguments, named=named, keep=True)
        return _called(function, result)
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

    def __getattr__(self, name: str) -> Value | types.ModuleType:
        if name not in self.__dict__["__all__"] and name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_asked"].named(name)
