"""Sizes of the house beside what was asked and those of 2715d9d7: ``python scripts/measure_size.py [ROOT]``.

Statements without docstrings, lines, modules, folders, comments, functions that one caller has, parameters.
None of them is a reason to write worse code.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_SHORT_MODULE, _SHORT_FUNCTION, _MANY = 40, 5, 6
_PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|pragma|mypy:|ruff:)")
#: Folders where a function's parameters are those of a kernel, of autograd or of the command line.
_GIVEN_PARAMETERS = ("models/row_kernels/", "generation/sampling/", "cli/", "models/triton_kernels/")


@dataclass(frozen=True)
class Row:
    """A size: ``before`` at 2715d9d7, ``most`` as asked (for comments the least)."""

    what: str
    before: float
    most: float
    now: float

    def __str__(self) -> str:
        return f"{self.what:58} {self.before:>9,g} {self.most:>9,g} {self.now:>9,g}"


def _statements(tree: ast.AST) -> int:
    def is_text(node: ast.stmt) -> bool:
        return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)

    return sum(isinstance(node, ast.stmt) and not is_text(node) for node in ast.walk(tree))


def _comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and not _PRAGMA.match(t.string) for t in tokens)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = function.args
    return len([*a.posonlyargs, *a.args, *a.kwonlyargs]) + bool(a.vararg) + bool(a.kwarg)


def _is_given(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether torch gives the parameters: of an autograd function (``ctx``), or of an operator's schema."""
    of_operator = any("custom_op" in ast.unparse(decorator) for decorator in function.decorator_list)
    return of_operator or [a.arg for a in function.args.args[:1]] == ["ctx"]


def _lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _called_once(trees: dict[str, ast.Module]) -> int:
    """Short functions of modules whose name stands in one other place of the package."""
    names = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
    return sum(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not node.decorator_list
        and _lines_of(node) <= _SHORT_FUNCTION
        and names[node.name] == 1
        for tree in trees.values()
        for node in tree.body
    )


def sizes(root: Path) -> list[Row]:
    """Measure ``root/paceline``. Raises OSError where there is no such folder."""
    package = root / "paceline"
    texts = {p.relative_to(package).as_posix(): p.read_text("utf-8") for p in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    modules = [path for path in texts if not path.endswith("__init__.py")]
    folders = Counter(path.rpartition("/")[0] for path in modules)
    functions = [
        node
        for path, tree in trees.items()
        if not path.startswith(_GIVEN_PARAMETERS)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    total = sum(lines.values())
    comments = 1000 * sum(map(_comments, texts.values())) / total
    return [
        Row("statements without docstrings", 62_898, 57_500, sum(map(_statements, trees.values()))),
        Row("lines", 124_000, 115_000, total),
        Row("modules without __init__", 946, 750, len(modules)),
        Row(f"modules under {_SHORT_MODULE} lines", 102, 40, sum(lines[m] < _SHORT_MODULE for m in modules)),
        Row("modules of the largest folder", 75, 18, max(folders.values())),
        Row("modules of a folder, median", 15, 10, statistics.median(folders.values())),
        Row("comments per 1,000 lines, at least", 18, 28, round(comments, 1)),
        Row(f"functions of {_SHORT_FUNCTION} lines with one caller", 287, 200, _called_once(trees)),
        Row(
            f"functions of more than {_MANY} parameters",
            126,
            80,
            sum(_parameters(f) > _MANY and not _is_given(f) for f in functions),
        ),
    ]


def main() -> None:
    """Print the table."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    print(f"{'':58} {'2715d9d7':>9} {'asked':>9} {'here':>9}")
    for row in sizes(root):
        print(row)


if __name__ == "__main__":
    main()
