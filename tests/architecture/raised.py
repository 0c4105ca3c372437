"""Every code that the package can raise, found by following the sources: what is written, and what is put together.

``Diagnostic(code, …)`` is the one shape of a finding. A function that hands one of its parameters on as the code (as it is,
or inside a text such as ``f"data.{reason}"``) raises what its callers give it, and so on up. A local name raises each code
that is written where the name is given a value; a name of a module, what is written there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sources import Source

CODE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST_ROUNDS = 10  # how many functions may stand between a code and its Diagnostic


@dataclass(frozen=True)
class Maker:
    """A function (or class) that makes a finding: which argument is the code, and the text around it."""

    name: str
    parameter: str
    position: int  # -1: by keyword alone
    file: str  # where it stands: a private name is called from there alone
    shape: str = "{}"
    is_method: bool = False

    def can_be(self, call: ast.Call, file: str) -> bool:
        """Whether ``call`` in ``file`` may be a call of this: private names have one file, methods stand behind a dot."""
        here = not self.name.startswith("_") or file == self.file
        return here and (isinstance(call.func, ast.Attribute) or not self.is_method)


@dataclass
class Raised:
    """What was found: code -> places; and the expressions that could not be followed, with theirs."""

    codes: dict[str, set[str]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def add(self, code: str, place: str) -> None:
        self.codes.setdefault(code, set()).add(place)


@dataclass(frozen=True)
class _Scope:
    """Where an expression stands: its file, the functions around it (inmost first), and the class."""

    source: Source
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...] = ()
    owner: ast.ClassDef | None = None

    def inside(self, node: ast.AST) -> _Scope:
        if isinstance(node, _FUNCTIONS):
            return _Scope(self.source, (node, *self.functions), self.owner)
        if isinstance(node, ast.ClassDef):
            return _Scope(self.source, (), node)
        return self


def raised_in(sources: tuple[Source, ...]) -> Raised:
    """All codes that ``sources`` can raise."""
    calls = [(scope, call) for source in sources for scope, call in _calls(source.tree, _Scope(source))]
    modules = _module_texts(sources)
    makers = {Maker("Diagnostic", "code", 0, "")}
    for _ in range(_MOST_ROUNDS):
        found = Raised()
        new = set()
        by_name: dict[str, list[Maker]] = {}
        for maker in makers:
            by_name.setdefault(maker.name, []).append(maker)
        for scope, call in calls:
            for maker in by_name.get(_name(call.func), ()):
                given = _argument(call, maker) if maker.can_be(call, scope.source.path) else None
                if given is not None:
                    new |= set(_follow(given, maker.shape, scope, modules, found))
        if new <= makers:
            return found
        makers |= new
    raise AssertionError("codes go through more functions than this follows")


def _calls(node: ast.AST, scope: _Scope) -> Iterator[tuple[_Scope, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        yield from _calls(child, scope.inside(child))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _argument(call: ast.Call, maker: Maker) -> ast.expr | None:
    """What ``call`` gives for the code; None where it gives nothing that can be seen (``**fields``)."""
    for keyword in call.keywords:
        if keyword.arg == maker.parameter:
            return keyword.value
    before = call.args[: maker.position + 1]
    if 0 <= maker.position < len(call.args) and not any(isinstance(a, ast.Starred) for a in before):
        return call.args[maker.position]
    return None


def _follow(node: ast.expr, shape: str, scope: _Scope, modules: dict[str, list[str]], found: Raised) -> Iterator[Maker]:
    """Records the codes that ``node`` can be; yields the functions whose parameter it is."""
    place = scope.source.at(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.add(shape.format(node.value), place)
    elif isinstance(node, ast.IfExp):
        for branch in (node.body, node.orelse):
            yield from _follow(branch, shape, scope, modules, found)
    elif isinstance(node, ast.JoinedStr):
        inner = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        if len(inner) == 1:
            text = "".join("{}" if isinstance(p, ast.FormattedValue) else str(ast.literal_eval(p)) for p in node.values)
            yield from _follow(inner[0], shape.format(text), scope, modules, found)
        else:
            found.unknown[place] = ast.unparse(node)
    elif isinstance(node, ast.Attribute) and _name(node.value) == "self" and scope.owner is not None:
        yield from _of_self(node.attr, shape, scope, scope.owner)
    elif isinstance(node, ast.Name):
        yield from _of_name(node, shape, scope, modules, found)
    else:
        texts = _texts(node)
        for text in texts:
            found.add(shape.format(text), place)
        if not texts:
            found.unknown[place] = ast.unparse(node)


def _of_self(attribute: str, shape: str, scope: _Scope, owner: ast.ClassDef) -> Iterator[Maker]:
    """``self.kind``: what the class is made with."""
    for method in owner.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            names = [a.arg for a in method.args.args][1:]
            if attribute in names:
                yield Maker(owner.name, attribute, names.index(attribute), scope.source.path, shape)
    names = [n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    if attribute in names:
        yield Maker(owner.name, attribute, names.index(attribute), scope.source.path, shape)


def _of_name(
    node: ast.Name, shape: str, scope: _Scope, modules: dict[str, list[str]], found: Raised
) -> Iterator[Maker]:
    for function in scope.functions:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        keywords = [a.arg for a in function.args.kwonlyargs]
        if node.id in names or node.id in keywords:
            skip = 1 if names[:1] in (["self"], ["cls"]) else 0
            position = names.index(node.id) - skip if node.id in names else -1
            made = function.name == "__init__" and scope.owner is not None
            called = scope.owner.name if made and scope.owner else function.name
            yield Maker(called, node.id, position, scope.source.path, shape, bool(skip) and not made)
            return
        texts = _local_texts(function, node.id, modules)
        if texts:
            for text in texts:
                found.add(shape.format(text), f"{scope.source.at(node)}")
            return
    texts = modules.get(node.id, [])
    for text in texts:
        found.add(shape.format(text), scope.source.at(node))
    if not texts:
        found.unknown[scope.source.at(node)] = ast.unparse(node)


def _local_texts(function: ast.AST, name: str, modules: dict[str, list[str]]) -> list[str]:
    """The codes written where a local name gets its value, or where the names in that value get theirs."""
    waiting: list[tuple[str, _Part]] = [(name, None)]
    seen, found = {name}, []
    while waiting:
        looked_at, part = waiting.pop()
        for value, inner in _given(function, looked_at):
            for piece in _pieces(value, inner or part):
                found += _texts(piece, modules)
                names = {n.id for n in ast.walk(piece) if isinstance(n, ast.Name)} - seen
                seen |= names
                waiting += [(n, inner or part) for n in sorted(names)]
    return found


_Part = tuple[int, int] | None  # which of how many values of a tuple a name takes


def _given(function: ast.AST, name: str) -> Iterator[tuple[ast.expr, _Part]]:
    """Every expression that a local name takes (or takes one part of), or that is appended to it."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets, value = [node.target], node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], node.iter
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            targets, value = [node.func.value], node.args[0]
        for target in targets if value is not None else ():
            several = target.elts if isinstance(target, ast.Tuple) else [target]
            for index, one in enumerate(several):
                if value is not None and isinstance(one, ast.Name) and one.id == name:
                    yield value, (index, len(several)) if isinstance(target, ast.Tuple) else None


def _pieces(value: ast.expr, part: _Part) -> list[ast.expr]:
    """``value``, or of the tuples written in it the one element that is meant (and the names that stand for more of them)."""
    if part is None:
        return [value]
    tuples = [n for n in ast.walk(value) if isinstance(n, ast.Tuple) and len(n.elts) == part[1]]
    names = [n for n in ast.walk(value) if isinstance(n, ast.Name)]
    return [*(t.elts[part[0]] for t in tuples), *names] if tuples else [value]


def _texts(node: ast.AST, modules: dict[str, list[str]] | None = None) -> list[str]:
    """The texts in an expression that have the form of a code, those of the module names it uses included."""
    if isinstance(node, ast.Compare):
        return []  # what is asked about is not what is raised
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and CODE.fullmatch(node.value) else []
    if isinstance(node, ast.Name):
        return list((modules or {}).get(node.id, []))
    return [text for child in ast.iter_child_nodes(node) for text in _texts(child, modules)]


def _module_texts(sources: tuple[Source, ...]) -> dict[str, list[str]]:
    """name of a module's constant -> the texts in it that have the form of a code."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name) and value is not None:
                    found.setdefault(target.id, []).extend(_texts(value))
    return found
