"""The package's sources as syntax trees, read once. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "paceline"
# The rooms in the order of the house plan: a room imports only rooms that stand before it.
ROOMS = (
    "core",
    "config",
    "runlog",
    "plan",
    "rules",
    "verify",
    "launch",
    "schedulers",
    "protocols",
    "runtime",
    "models",
    "data",
    "strategies",
    "generation",
    "algorithms",
    "checkpoint",
    "evaluation",
    "training",
    "simulate",
    "doctor",
    "watch",
    "rehearsal",
    "demo",
    "api",
    "cli",
)
ABOVE_THE_TORCH_LINE = ("core", "config", "runlog", "plan", "rules", "verify", "launch", "schedulers")
# they reach what needs torch by starting ``python -m paceline.…``
WITHOUT_TORCH_ROOMS = (
    "doctor",
    "watch",
    "rehearsal",
    "demo",
    "cli",
)


@dataclass(frozen=True)
class Source:
    """One file: its path from the root, its room (empty for the package's own ``__init__``), its text and
    tree.
    """

    path: str
    room: str
    text: str
    tree: ast.Module

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 0)}"

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def _imports(self) -> list[tuple[str, ast.stmt, bool]]:
        return list(self._read_imports())

    @cached_property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        return [(dotted(node.func), node) for node in self._nodes if isinstance(node, ast.Call)]

    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, as ``ast.walk`` gives them."""
        return self._nodes

    def imports(self) -> list[tuple[str, ast.stmt, bool]]:
        """(module, statement, only for type checking) of every import, wherever it stands."""
        return self._imports

    def calls(self) -> list[tuple[str, ast.Call]]:
        """(dotted name as written, call) of every call."""
        return self._calls

    def _read_imports(self) -> Iterator[tuple[str, ast.stmt, bool]]:
        typing_only = {
            id(inner)
            for node in self.nodes()
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for part in node.body
            for inner in ast.walk(part)
        }
        for node in self.nodes():
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node, id(node) in typing_only
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", node, id(node) in typing_only


def dotted(node: ast.expr) -> str:
    """``torch.distributed.barrier`` of an attribute chain, or an empty text for anything computed."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else f"?.{node.attr}"
    return ""


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        text = path.read_text(encoding="utf-8")
        found.append(
            Source(
                path.relative_to(ROOT).as_posix(), parts[0] if len(parts) > 1 else "", text, ast.parse(text)
            )
        )
    return tuple(found)


@cache
def modules() -> dict[str, Source]:
    """Every file by its dotted name."""
    return {
        source.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): source
        for source in sources()
    }


@cache
def imports_by_file(*, for_types: bool = False) -> dict[str, set[str]]:
    """Dotted name of a file -> files of the package that it imports, in functions too; for types if asked."""
    return {
        name: {
            imported
            for module, _, typing_only in source.imports()
            if (for_types or not typing_only) and (imported := _file_of(module)) not in ("", name)
        }
        for name, source in modules().items()
    }


def _file_of(imported: str) -> str:
    """The file that ``package.module.name`` is read from, or an empty text for another package's."""
    while imported and imported not in modules():
        imported = imported.rpartition(".")[0]
    return imported
