"""A test that is skipped where a package is missing runs here: what is skipped everywhere tests nothing."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
#: Programs with environments of their own (``slow`` tests and recorded answers).
JUDGES = {"lm_eval", "trl"}


def needed(file: Path) -> set[str]:
    """Return the packages without which tests of ``file`` are skipped."""
    calls = (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call))
    skips = (call for call in calls if getattr(call.func, "attr", "") == "importorskip")
    first = (call.args[0] for call in skips)
    return {str(name.value).partition(".")[0] for name in first if isinstance(name, ast.Constant)}


def test_packages_that_tests_are_skipped_without_are_installed() -> None:
    packages = {name for file in TESTS.rglob("*.py") for name in needed(file)}
    assert len(packages) > 10
    assert {name for name in packages if find_spec(name) is None} <= JUDGES
