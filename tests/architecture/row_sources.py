"""The sources that make rows and tokens, a digest a statement: ``python tests/architecture/row_sources.py``
records those of now in row_sources.txt.

A statement is known by what it says, not by its file, its comments or its imports: moving it changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import paceline.data
from paceline.core.plugins.tables import ROW_KINDS
from paceline.data.prepare import build
from paceline.data.prepare.fingerprint import ROWS_VERSION
from paceline.data.rows.kinds.base import row_kind

RECORDED = Path(__file__).with_suffix(".txt")
ROOM, PACKAGE = Path(paceline.data.__file__).parent, paceline.data.__name__
# Modules that do not affect the tokens.
BESIDE_THE_TOKENS = ("codes", "file_digests", "dataset_store", "identity", "fingerprint")


def modules() -> dict[str, Path]:
    """Return the room's modules that preparation and the kinds of rows import, all the way down."""
    found: dict[str, Path] = {}
    waiting = [build.__name__, *(type(row_kind(name)).__module__ for name in ROW_KINDS)]
    while waiting:
        name = waiting.pop()
        if name in found or name.rpartition(".")[2] in BESIDE_THE_TOKENS:
            continue
        found[name] = file_of(name)
        for node in ast.walk(ast.parse(found[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                waiting += [str(node.module), *(one for one in inside if file_of(one).is_file())]
    return found


def file_of(module: str) -> Path:
    """Return the file of a module of the room, which may not exist."""
    path = ROOM.joinpath(*module.split(".")[PACKAGE.count(".") + 1 :])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def statements(source: str) -> Iterator[str]:
    """Yield name and digest of each statement at top level but imports."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Import | ast.ImportFrom) and not is_text(node):
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            yield f"{getattr(node, 'name', (names or ['-'])[0])} {digest(repr(plain(node)))}"


def is_text(node: object) -> bool:
    """Whether a node is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def plain(node: object) -> object:
    """Return what a node says, alike under every Python: without docstrings, imports and empty fields."""
    if isinstance(node, list):
        return [
            plain(one)
            for one in node
            if not is_text(one) and not isinstance(one, ast.Import | ast.ImportFrom)
        ]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, plain(value)) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind")]
    return type(node).__name__, [(name, value) for name, value in fields if value not in (None, [])]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sources() -> list[str]:
    """Return what ``RECORDED`` should say: the version, then a line a statement and a template."""
    lines = [line for file in modules().values() for line in statements(file.read_text(encoding="utf-8"))]
    lines += [f"{file.name} {digest(file.read_text('utf-8'))}" for file in ROOM.rglob("*.jinja")]
    return [f"version {ROWS_VERSION}", *sorted(lines)]


if __name__ == "__main__":
    RECORDED.write_text("\n".join(sources()) + "\n", encoding="utf-8")
