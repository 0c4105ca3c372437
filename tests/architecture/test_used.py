"""Every public name of the package is used by the package, or is one that others may rely on: nothing is
built, tested and never connected.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from sources import Source, sources

#: Called by a library that the class is handed to, or read by scripts/ and tests/ as a part of what is
#: generated.
CALLED_BY_OTHERS = {
    "import_": "typer calls it: paceline config import",
    "EngineHandle.state_bytes": "Handle's, asked by the measure of the suite",
    "_Stage.set_local_bwd_input": "torch's pipeline stages call it",
    "_EffectCalls.visit_Expr": "ast.NodeVisitor calls it",
    "LazyPlanner.resolve_data": "torch.distributed.checkpoint calls its planner",
    "Text.get_filename": "runpy and tracebacks call a loader's methods",
    "Text.get_data": "runpy and tracebacks call a loader's methods",
    "RedactedStream.writelines": "io.TextIOBase: print and logging may call it",
    "Speed.tokens_per_second_per_rank": "dev/research/planner_fit.py scores by it",
}
_WORD = re.compile(r"[A-Za-z_]\w*")


def _mentions(source: Source) -> Iterator[tuple[str, int]]:
    for node in source.nodes():
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name):
            yield node.id, line
        elif isinstance(node, ast.Attribute):
            yield node.attr, line
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2], 0
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, 0
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            yield from ((word, 0) for word in _WORD.findall(node.value))


def _public(tree: ast.Module) -> Iterator[tuple[str, str, ast.stmt]]:
    """(as it is called, last name, node) of every public name of a module and method of its classes."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((x.id, x.id, node) for x in node.targets if isinstance(x, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.target.id, node
        if isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{m.name}", m.name, m) for m in node.body if isinstance(m, ast.FunctionDef)
            )


def unused(files: tuple[Source, ...]) -> list[str]:
    uses: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for source in files:
        for name, line in _mentions(source):
            uses[name].add((source.path, line))
    found = []
    for source in files:
        for called, name, node in _public(source.tree):
            if name.startswith("_"):
                continue
            inside = {(source.path, line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
            if not uses[name] - inside:
                found.append(called)
    return found


def test_every_public_name_is_used_by_the_package() -> None:
    dead = [name for name in unused(sources()) if name not in {*CALLED_BY_OTHERS}]
    assert dead == [], "connect them, or delete them with their tests"


def test_the_lists_hold_nothing_that_is_used() -> None:
    assert sorted({*CALLED_BY_OTHERS} - {*unused(sources())}) == []


def test_a_dead_wire_is_seen() -> None:
    tree = ast.parse(
        "def dead():\n    return dead()\n\ndef live():\n    pass\n\nclass A:\n    def gone(self):"
        " ...\n\nlive(A)\n"
    )
    assert unused((Source("x.py", "", "", tree),)) == ["dead", "A.gone"]
