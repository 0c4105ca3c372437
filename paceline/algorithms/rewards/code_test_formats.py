"""Formats of the column with a row's tests, and whether they can be used on a program in another process.

Python      assertions, ``def test_…()`` functions, unittest classes, or HumanEval's ``def check(candidate)``
            with the function's name in another column; a text, or a list of texts
pairs       ``{"inputs": […], "outputs": […]}`` or ``[{"input": …, "output": …}, …]``: standard input and the
            expected standard output (APPS, TACO, CodeContests); with ``fn_name``, arguments and results of
            that function; ``{"test_cases": …}`` is its list

Both may be JSON in a text.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.algorithms.rewards.sandbox.used_names import PROGRAM_MODULES, tested_names
from paceline.core.json_types import Json, as_object

_PRINTED = frozenset({"capsys", "capfd", "monkeypatch", "redirect_stdout", "patch", "StringIO"})
_NEEDS_CLASS = frozenset({"isinstance", "issubclass", "raises", "assertRaises", "assertIsInstance"})
_CALL_PAIRS = """
import json
def _listed(value):
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in value]
    return {{str(key): _listed(item) for key, item in value.items()}} if isinstance(value, dict) else value
try:
    _function = {name}
except NameError:
    _function = Solution().{name}
for _arguments, _expected in json.loads({pairs}):
    _result = _listed(_function(*_arguments))
    assert _result == _expected or [_result] == _expected
"""


@dataclass(frozen=True)
class RowTests:
    """Either ``python`` to run, or ``pairs`` of standard input and expected output."""

    python: str = ""
    pairs: tuple[tuple[str, str], ...] = ()


def read_tests(value: Json, entry_point: str = "") -> RowTests:
    """Parse the tests in ``value``. Raises ValueError with the reason if they cannot be used."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):  # not JSON, so Python
            value = json.loads(value)
    if isinstance(value, Mapping) and "test_cases" in value:  # open-r1's
        value = value["test_cases"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = _joined(value)
    # A mapping holds pairs, one or several; everything else must be Python
    if isinstance(value, Mapping) and {"input", "output"} <= set(value):
        value = {**value, "inputs": [value["input"]], "outputs": [value["output"]]}
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= set(value):
        return _of_pairs(value["inputs"], value["outputs"], str(value.get("fn_name") or ""))
    if not isinstance(value, str):
        raise ValueError("neither Python code nor inputs with outputs")
    return RowTests(_python(value, entry_point))


def _joined(values: Sequence[Json]) -> Json:
    """Return texts as one text, input-output pairs as one mapping of two lists, anything else unchanged."""
    texts = [item for item in values if isinstance(item, str)]
    if len(texts) == len(values):
        return "\n".join(texts)
    pairs = [item for item in values if isinstance(item, Mapping) and {"input", "output"} <= set(item)]
    if len(pairs) < len(values):
        return values
    names = {
        str(item.get("fn_name") or as_object(item.get("metadata")).get("func_name") or "") for item in pairs
    }
    name = {"fn_name": names.pop()} if len(names) == 1 else {}
    return {
        "inputs": [item["input"] for item in pairs],
        "outputs": [item["output"] for item in pairs],
        **name,
    }


def _of_pairs(inputs: Json, outputs: Json, name: str) -> RowTests:
    if (
        not isinstance(inputs, list)
        or not isinstance(outputs, list)
        or len(inputs) != len(outputs)
        or not inputs
    ):
        raise ValueError("inputs and outputs must be two lists of the same length, with at least one item")
    if not name:
        return RowTests(pairs=tuple((_lines(i), _lines(o)) for i, o in zip(inputs, outputs, strict=True)))
    if not name.isidentifier():
        raise ValueError(f"fn_name {name!r} is not the name of a function")
    calls = [
        [_arguments(i), json.loads(o) if isinstance(o, str) and isinstance(i, str) else o]
        for i, o in zip(inputs, outputs, strict=True)
    ]
    return RowTests(_CALL_PAIRS.format(name=name, pairs=repr(json.dumps(calls))))


def _arguments(value: Json) -> list[Json]:
    """Return the arguments of one call, from a list or from a text with one JSON value per line."""
    if isinstance(value, str):
        return [json.loads(line) for line in value.splitlines() if line.strip()]
    return value if isinstance(value, list) else [value]


def _lines(value: Json) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if not isinstance(value, str):
        raise ValueError("inputs and outputs must be text, or a list of lines")
    return value


def same_output(actual: str, expected: str) -> bool:
    """Compare line by line, ignoring trailing spaces and trailing empty lines."""
    return [s.rstrip() for s in actual.rstrip().splitlines()] == [
        e.rstrip() for e in expected.rstrip().splitlines()
    ]


def _python(text: str, entry_point: str) -> str:
    """Return the tests with the call that starts them. Raises ValueError if they cannot be used."""
    try:
        tree = ast.parse(text)
        requested = tested_names(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not valid Python: {error}") from error
    # HumanEval's check(candidate) needs a call; other tests must use something of the program
    check = next(
        (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"), None
    )
    if check is not None and len(check.args.args) == 1 and not _calls(tree, "check"):
        if not entry_point:
            raise ValueError(
                "check(candidate) is never called: entry_point, the function to check, is missing"
            )
        text = f"{text}\ncheck({entry_point})\n"
    elif not requested and not entry_point and not _imports(tree) & set(PROGRAM_MODULES):
        raise ValueError("they use nothing that a program would define")
    if hasattr(builtins, entry_point):  # a task may be to write ``sum``
        text = f"from {PROGRAM_MODULES[0]} import {entry_point}\n{text}"
    for reason in _not_divisible(tree, requested | {entry_point}):
        raise ValueError(reason)
    return text


def _calls(tree: ast.Module, name: str) -> bool:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == name for function in called)


def _imports(tree: ast.Module) -> set[str]:
    """Return the top-level modules imported anywhere."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add("." * node.level + (node.module or "").partition(".")[0])
    return modules


def _not_divisible(tree: ast.Module, requested: set[str]) -> Iterator[str]:
    """Yield why these tests cannot run in another process than the program; nothing if they can."""
    missing = sorted(
        m for m in _imports(tree) - set(PROGRAM_MODULES) if m.startswith(".") or not _installed(m)
    )
    if missing:
        yield f"they import {', '.join(missing)}, which is not installed here"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name.startswith("test")
            and len(node.args.args) - len(node.args.defaults) > (node not in tree.body)  # self, in a class
        ):
            yield f"{node.name} has arguments: fixtures and parameters of pytest are not supported"
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            replaces = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if name in _PRINTED or (replaces and name in ("stdout", "stdin", "input", "print")):
                yield (
                    f"{name}: another process cannot see what the program prints and reads; give"
                    " inputs and outputs"
                )
        yield from (
            f"{name}: another process does not know a class of the program"
            for name in _classes(node) & requested
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _classes(node: ast.AST) -> set[str]:
    """Return names that are used as classes: to inherit from, to catch, to compare with."""
    expressions: list[ast.expr | None] = []
    if isinstance(node, ast.ClassDef):
        expressions = [*node.bases]
    elif isinstance(node, ast.ExceptHandler):
        expressions = [node.type]
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _NEEDS_CLASS:
            expressions = [*node.args[:2]] if name in ("raises", "assertRaises") else [*node.args[1:2]]
    parts = (part for item in expressions if item is not None for part in ast.walk(item))
    return {part.id for part in parts if isinstance(part, ast.Name)}
