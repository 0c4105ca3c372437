"""Evaluate a Python script's literals, and expressions of literals, without running code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from paceline.core.json_types import Json, JsonObject

_ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_LARGEST = 1e18
#: modules and classes of which an attribute is a word: ``torch.bfloat16``, ``IntervalStrategy.STEPS``
_WORDS = ("torch", "IntervalStrategy", "SchedulerType", "SaveStrategy", "TaskType", "OptimizerNames")
_DEPTH = 40


class NotLiteral(Exception):
    """A value that is known only when the script runs; ``source``: its expression, ``line``: where."""

    def __init__(self, node: ast.AST) -> None:
        self.source = " ".join(ast.unparse(node).split())[:80]
        self.line = getattr(node, "lineno", 1)
        super().__init__(self.source)


class ScriptValues:
    """The values of a script's names that are assigned once, or have a default."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, list[ast.AST]] = {}
        self._fields: dict[tuple[str, str], ast.expr] = {}
        self._options: dict[str, ast.expr] = {}
        self._parsed: set[str] = set()
        for node in ast.walk(tree):
            self._look(node)

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
            for inner in ast.walk(node.target):
                self._assign(inner, node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for argument, default in _defaults(node.args):
                self._assigned.setdefault(argument, []).append(default)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.Call) and called(node) == "add_argument":
            self._option(node)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        parses = isinstance(value, ast.Call) and called(value).startswith("parse_")
        if isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(value)
            self._parsed |= {target.id} if parses else set()
        elif isinstance(target, (ast.Tuple, ast.List)):
            for inner in target.elts:
                self._assign(inner, value if parses else target)

    def _class(self, node: ast.ClassDef) -> None:
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
                value: ast.expr | None = line.value
                if isinstance(value, ast.Call) and called(value) in ("field", "Field"):
                    value = next((word.value for word in value.keywords if word.arg == "default"), None)
                if value is not None:
                    self._fields[node.name, line.target.id] = value
                    self._options.setdefault(line.target.id, value)
            elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                self._fields[node.name, line.targets[0].id] = line.value

    def _option(self, node: ast.Call) -> None:
        words = {word.arg: word.value for word in node.keywords}
        names = [
            arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        longest = max(names, key=len, default="").lstrip("-").replace("-", "_")
        named = words.get("dest")
        name = named.value if isinstance(named, ast.Constant) else longest
        action = words.get("action")
        switch = isinstance(action, ast.Constant) and action.value in ("store_true", "store_false")
        default: ast.expr = ast.Constant(value=None)
        if switch and isinstance(action, ast.Constant):
            default = ast.Constant(value=action.value == "store_false")
        if not words.get("required"):
            self._options[str(name)] = words.get("default", default)

    def of(self, node: ast.expr, depth: int = 0) -> Json:
        """Return the value of an expression. Raises NotLiteral."""
        if depth > _DEPTH:
            raise NotLiteral(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.of(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict):
            return dict(self._items(node, depth))
        if isinstance(node, ast.Name):
            return self._name(node, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, depth)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            return self._operation(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        raise NotLiteral(node)

    def origin(self, node: ast.expr | None, depth: int = 0) -> ast.expr | None:
        """Return the expression assigned to a name, if there is only one; any other node unchanged."""
        while isinstance(node, ast.Name) and depth < _DEPTH:
            values = self._of_name(node.id)
            first = values[0] if len(values) == 1 else node
            if first is node or not isinstance(first, ast.expr):
                return node
            node, depth = first, depth + 1
        return node

    def _of_name(self, name: str) -> list[ast.AST]:
        """Return the different values that are assigned to a name."""
        return list({ast.dump(value): value for value in self._assigned.get(name, [])}.values())

    def all_of(self, name: str) -> list[ast.expr]:
        """Return everything that is assigned to a name."""
        return [value for value in self._assigned.get(name, []) if isinstance(value, ast.expr)]

    def _items(self, node: ast.Dict, depth: int) -> Iterator[tuple[str, Json]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield str(self.of(key, depth + 1)), self.of(value, depth + 1)
            elif isinstance(inner := self.of(value, depth + 1), dict):
                yield from inner.items()
            else:
                raise NotLiteral(node)

    def _name(self, node: ast.Name, depth: int) -> Json:
        values = self._of_name(node.id)
        if len(values) != 1 or not isinstance(values[0], ast.expr):
            raise NotLiteral(node)
        try:
            return self.of(values[0], depth + 1)
        except NotLiteral:
            raise NotLiteral(node) from None

    def _attribute(self, node: ast.Attribute, depth: int) -> Json:
        outer = node.value.id if isinstance(node.value, ast.Name) else called(node.value)
        if outer in _WORDS:
            return node.attr if outer == "torch" else node.attr.lower()
        made = self.origin(node.value)
        owner = called(made) if isinstance(made, ast.Call) else outer
        field = self._fields.get((owner, node.attr))
        if field is None and outer in self._parsed:
            field = self._options.get(node.attr)
        if field is None:
            raise NotLiteral(node)
        value = self.of(field, depth + 1)
        if value is None and outer in self._parsed:  # an option without a default is the user's to give
            raise NotLiteral(node)
        return value

    def _subscript(self, node: ast.Subscript, depth: int) -> Json:
        outer, key = self.of(node.value, depth + 1), self.of(node.slice, depth + 1)
        if isinstance(outer, dict) and str(key) in outer:
            return outer[str(key)]
        if isinstance(outer, list) and isinstance(key, int) and -len(outer) <= key < len(outer):
            return outer[key]
        raise NotLiteral(node)

    def _joined(self, node: ast.JoinedStr, depth: int) -> Json:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion != -1:
                    raise NotLiteral(node)
                part = part.value
            parts.append(str(self.of(part, depth + 1)))
        return "".join(parts)

    def _operation(self, node: ast.BinOp | ast.UnaryOp, depth: int) -> Json:
        if isinstance(node, ast.UnaryOp):
            value = self.of(node.operand, depth + 1)
            if isinstance(node.op, ast.Not):
                return not value
            if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
                return -value
            raise NotLiteral(node)
        left, right = self.of(node.left, depth + 1), self.of(node.right, depth + 1)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            return left + right
        made = _ARITHMETIC.get(type(node.op))
        if made is None or not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
            raise NotLiteral(node)
        if right == 0 and isinstance(node.op, (ast.Div, ast.FloorDiv)):
            raise NotLiteral(node)
        value = made(left, right)
        if abs(value) > _LARGEST:
            raise NotLiteral(node)
        return value

    def _call(self, node: ast.Call, depth: int) -> Json:
        name = ast.unparse(node.func)
        if name in ("os.path.join", "path.join", "osp.join"):
            return str(PurePosixPath(*(str(self.of(arg, depth + 1)) for arg in node.args)))
        if name in ("os.environ.get", "os.getenv", "environ.get", "getattr") and len(node.args) >= 2:
            return self.of(node.args[-1], depth + 1)
        if name in ("int", "float", "str", "bool", "Path") and len(node.args) == 1 and not node.keywords:
            value = self.of(node.args[0], depth + 1)
            return _cast(name, value, node)
        if name == "dict":
            return self.keywords(node)[0]
        raise NotLiteral(node)

    def keywords(self, node: ast.Call) -> tuple[JsonObject, dict[str, int], dict[str, NotLiteral]]:
        """Return a call's keyword arguments, the line of each, and those whose value stays open."""
        values: JsonObject = {}
        lines: dict[str, int] = {}
        open_: dict[str, NotLiteral] = {}
        for word in node.keywords:
            try:
                found = self.of(word.value)
            except NotLiteral as problem:
                open_[word.arg or f"**{ast.unparse(word.value)[:40]}"] = problem
                continue
            given = {word.arg: found} if word.arg else found if isinstance(found, dict) else {}
            values |= given
            lines |= dict.fromkeys(given, word.value.lineno)
        return values, lines, open_


def _cast(name: str, value: Json, node: ast.Call) -> Json:
    if isinstance(value, (list, dict)) or value is None:
        raise NotLiteral(node)
    try:
        made: Json = {"int": int, "float": float, "bool": bool}.get(name, str)(value)
    except ValueError:
        raise NotLiteral(node) from None
    return made


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    plain = [*arguments.posonlyargs, *arguments.args]
    yield from ((a.arg, d) for a, d in zip(plain[::-1], arguments.defaults[::-1], strict=False))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def called(node: ast.AST) -> str:
    """Return the last name of a call or of an attribute: ``from_pretrained`` of ``A.from_pretrained(…)``."""
    if isinstance(node, ast.Call):
        return called(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
