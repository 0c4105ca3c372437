"""Tests ask public names: what is private may change without a test. The ceiling only falls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CEILING = 174
PRIVATE = re.compile(r"_[A-Za-z]\w*")
#: Functions whose second text names an attribute.
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "patch", "object"}
#: Runs in other programs' environments, and asks for what they hide.
OTHERS = TESTS / "peers" / "inside"


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each private name of others that is asked, imported or replaced."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield from () if own else ((node.lineno, node.attr),)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name.name) for name in node.names if PRIVATE.fullmatch(name.name))
        elif isinstance(node, ast.Call) and name_of(node.func) in BY_NAME:
            texts = (
                a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )
            yield from ((node.lineno, t) for t in texts if PRIVATE.fullmatch(t.rpartition(".")[2]))


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_tests_use_few_private_names() -> None:
    found = {
        f"{file.relative_to(TESTS)}:{line} {name}"
        for file in TESTS.rglob("*.py")
        if file.parent != OTHERS
        for line, name in private_names(ast.parse(file.read_text("utf-8")))
    }
    print(*sorted(found), sep="\n")
    assert len(found) <= CEILING, "ask a public name; pytest -rP lists them"
    assert len(found) > CEILING - 10, f"lower the ceiling to {len(found)}"


def test_every_way_to_a_private_name_is_seen() -> None:
    source = """
from a import _one
a._two.three
a.b()._three
setattr(a, "_four", 1)
patch("a.b._five")
monkeypatch.setattr("a.b._six", 1)
mock.patch.object(a, "_seven")
self._eight, cls._nine, a.__ten__, a.eleven_
"""
    found = {name.rpartition(".")[2] for _, name in private_names(ast.parse(source))}
    assert found == {"_one", "_two", "_three", "_four", "_five", "_six", "_seven"}
