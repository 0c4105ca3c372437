"""What a diagnostic's code means, read from the place that raises it: the text cannot differ from what the program says."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paceline.cli.process import ROOT
from paceline.config.codes import EXPLANATIONS
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

PACKAGE = ROOT / "paceline"
_CODE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
_FIELDS = ("code", "what", "where", "found", "hint")
_MAKERS = ("Diagnostic", "problem", "refuse")  # Context.problem of config/rules, Findings.refuse of plan/engine


@dataclass(frozen=True)
class Raised:
    """One place that makes a diagnostic: its literal texts, with ``{…}`` where a value goes, and the docstring around it."""

    code: str
    what: str
    hint: str
    place: str
    around: str


class Codes:
    """All diagnostics of the package, found by reading its sources (nothing is imported)."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.package = package

    @cached_property
    def all(self) -> dict[str, list[Raised]]:
        """code -> the places that make it."""
        found: dict[str, list[Raised]] = {}
        for path in sorted(self.package.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(f"{name}(" in text for name in _MAKERS):
                for raised in _in_tree(ast.parse(text), path.relative_to(self.package.parent).as_posix()):
                    found.setdefault(raised.code, []).append(raised)
        return found


def explained(code: str, codes: Codes | None = None) -> str:
    """The explanation of ``code``. Raises ConfigError with the nearest codes when there is none such."""
    known = (codes or Codes()).all
    if code not in known:
        near = (
            difflib.get_close_matches(code, known, n=3)
            or [c for c in sorted(known) if c.split(".")[0] == code.split(".")[0]][:5]
        )
        hint = f"nearest: {', '.join(near)}" if near else "the code in brackets of a message, e.g. run.exists"
        raise ConfigError(Diagnostic("cli.unknown_code", "no diagnostic has this code", "command line", code, hint))
    lines = [code, *([EXPLANATIONS[code]] if code in EXPLANATIONS else [])]
    for raised in known.get(code, ()):
        lines += ["", f"  what:   {raised.what}"] if raised.what else [""]
        if raised.hint:
            lines.append(f"  write:  {raised.hint}")
        if raised.around:
            lines += ["  rule:   " + raised.around]
        lines.append(f"  source: {raised.place}")
    return "\n".join(lines)


def _in_tree(tree: ast.AST, file: str, around: str = "") -> Iterator[Raised]:
    for node in ast.iter_child_nodes(tree):
        inner = around
        if isinstance(node, ast.FunctionDef):
            inner = " ".join((ast.get_docstring(node) or "").split())
        elif isinstance(node, ast.Call):
            texts = _texts(node)
            if _CODE.fullmatch(texts.get("code", "")):
                yield Raised(
                    texts["code"], texts.get("what", ""), texts.get("hint", ""), f"{file}:{node.lineno}", around
                )
        yield from _in_tree(node, file, inner)


def _texts(call: ast.Call) -> dict[str, str]:
    """The literal texts of a call that makes a Diagnostic (or of one of its short forms), by field."""
    name = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    if name not in _MAKERS:
        return {}
    given = dict(zip(_FIELDS, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg in _FIELDS}
    return {str(field): _text(node) for field, node in given.items()}


def _text(node: ast.expr) -> str:
    """A string expression as text, with ``{…}`` for what is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{" + ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node) + "}"
