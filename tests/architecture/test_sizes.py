"""Sizes, printed for everyone to see (pytest -s, or scripts/test -rP tests/architecture), not enforced:
big ones grow unseen.
"""

from __future__ import annotations

import ast
from pathlib import Path

from sources import sources

SHOWN = 10
TESTS = Path(__file__).resolve().parents[1]


def test_sizes_are_printed() -> None:
    files, functions, classes = [], [], []
    for source in sources():
        files.append((source.text.count("\n"), source.path))
        for node in source.nodes():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                (classes if isinstance(node, ast.ClassDef) else functions).append(
                    (length, f"{source.path}:{node.lineno} {node.name}")
                )
    for title, rows in (("files", files), ("functions", functions), ("classes", classes)):
        print(f"\nlongest {title} (lines), {len(rows)} in all, {sum(n for n, _ in rows)} lines")
        for length, name in sorted(rows, reverse=True)[:SHOWN]:
            print(f"  {length:>5}  {name}")
    assert files and functions and classes


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their bare name: two of one name stop the whole collection."""
    names = [path.stem for path in TESTS.rglob("test_*.py")]
    assert len(names) > 100 and sorted({n for n in names if names.count(n) > 1}) == []
