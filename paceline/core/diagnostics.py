"""Diagnostics: the one type by which every part of Paceline reports a problem."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from paceline.core.package import PACKAGE

#: Extra facts of a finding, as JSON.
Evidence: TypeAlias = Mapping[str, Any]


class Severity(str, Enum):
    """How much a finding matters: an ERROR stops the start, a WARNING is printed, a NOTE is recorded."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Diagnostic:
    """One finding; created by calling its ``Code``.

    ``code`` is the code's name. ``what`` is what is wrong. ``where`` is ``file:line`` or a key path,
    ``found`` the value found there. ``hint`` is what to write or do instead. ``evidence`` holds extra facts
    (JSON types only).
    """

    code: str
    what: str
    where: str = ""
    found: str = ""
    hint: str = ""
    severity: Severity = Severity.ERROR
    evidence: Evidence = field(default_factory=dict)

    def render(self) -> str:
        """Return the finding as text: a headline, then an indented line each for the value and the fix."""
        prefix = f"{self.where}: " if self.where else ""
        parts = [f"{self.severity.value}[{self.code}] {prefix}{self.what}"]
        if self.found:
            parts.append(f"    found: {self.found}")
        if self.hint:
            parts.append(
                f"    fix:   {self.hint}" if self.severity is Severity.ERROR else f"    hint:  {self.hint}"
            )
        # A multi-line value is indented and marked, so that its lines cannot pass for another finding
        return "\n".join(part.replace("\n", "\n    | ") for part in parts)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a dict of plain JSON types."""
        return {**asdict(self), "severity": self.severity.value, "evidence": dict(self.evidence)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Diagnostic:
        """The inverse of ``to_json``."""
        return Diagnostic(**{**data, "severity": Severity(data.get("severity", "error"))})


@dataclass(frozen=True)
class CodeName:
    """The stable ``name`` of a diagnostic code (``room.short_name``) and an ``explanation`` of cause and fix.

    Each code is defined once, in its room's ``codes.toml``; ``paceline explain``,
    ``docs/reference/config.md`` and the
    page of ``paceline watch`` print the explanation. ``chinese`` is its translation.
    """

    name: str
    explanation: str
    chinese: str = ""


@dataclass(frozen=True)
class Code(CodeName):
    """A code whose callers write the sentences: calling it creates a ``Diagnostic``."""

    def __call__(
        self,
        what: str,
        where: str = "",
        found: str = "",
        hint: str = "",
        severity: Severity = Severity.ERROR,
        evidence: Evidence | None = None,
    ) -> Diagnostic:
        """Return a ``Diagnostic`` with this code's name; the arguments are its other fields."""
        return Diagnostic(self.name, what, where, found, hint, severity, {} if evidence is None else evidence)


@dataclass(frozen=True)
class TemplateCode(CodeName):
    """A code whose ``codes.toml`` has the sentences: calling it with their values creates a ``Diagnostic``.

    ``what`` and ``hint`` are format strings; without ``hint`` the caller writes it. ``codes.pyi`` declares
    the values of each code.
    """

    what: str = ""
    hint: str | None = None
    severity: Severity = Severity.ERROR

    def __call__(
        self,
        where: str = "",
        found: str = "",
        *,
        hint: str = "",
        severity: Severity | None = None,
        evidence: Evidence | None = None,
        **values: object,
    ) -> Diagnostic:
        """Return a ``Diagnostic`` with this code's name and its sentences, filled with ``values``."""
        return Diagnostic(
            self.name,
            self.what.format(**values),
            where,
            found,
            hint if self.hint is None else self.hint.format(**values),
            self.severity if severity is None else severity,
            {} if evidence is None else evidence,
        )


@cache
def read_codes(file: Path) -> Mapping[str, Code | TemplateCode]:
    """Return the codes of a ``codes.toml`` by constant: table ``[data.format]`` defines ``DATA_FORMAT``."""
    import tomllib  # few starts report anything

    with file.open("rb") as stream:
        groups = tomllib.load(stream)
    return {
        f"{group}_{short}".upper(): _code(f"{group}.{short}", **texts)
        for group, entries in groups.items()
        for short, texts in entries.items()
    }


def _code(name: str, en: str, zh: str, severity: str = "error", **sentences: str) -> Code | TemplateCode:
    if not sentences:
        return Code(name, en, zh)
    return TemplateCode(name, en, zh, severity=Severity(severity), **sentences)


def codes_beside(module_file: str) -> Callable[[str], Code | TemplateCode]:
    """Return the ``__getattr__`` of a room's ``codes`` module; it reads ``codes.toml`` when first called."""
    # Read at the first code: most starts report nothing
    file = Path(module_file).with_suffix(".toml")

    def code(constant: str) -> Code | TemplateCode:
        known_code = read_codes(file).get(constant) if constant.isupper() else None
        if known_code is None:
            raise AttributeError(f"{file} defines no code {constant}")
        return known_code

    return code


@cache
def all_codes() -> Mapping[str, Code | TemplateCode]:
    """Return every room's codes by name."""
    return {
        code.name: code for file in sorted(PACKAGE.rglob("codes.toml")) for code in read_codes(file).values()
    }


def errors(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings of severity ERROR."""
    return tuple(d for d in diagnostics if d.severity is Severity.ERROR)


def render_all(diagnostics: Iterable[Diagnostic]) -> str:
    """Return all findings as text, in order."""
    return "\n".join(d.render() for d in diagnostics)


def print_diagnostics(diagnostics: Sequence[Diagnostic], rank: int, *, only_first: bool = False) -> None:
    """Print diagnostics to stderr; with ``only_first`` only on rank 0, for findings that all ranks share."""
    if only_first and rank != 0:
        return
    for diagnostic in diagnostics:
        print(diagnostic.render(), file=sys.stderr, flush=True)
