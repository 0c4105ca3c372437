"""Diagnostics: the one type by which every part of Paceline reports a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from paceline.core.package import PACKAGE


class Severity(str, Enum):
    """How much a finding matters: an ERROR stops the start, a WARNING is printed, a NOTE is recorded."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Diagnostic:
    """One finding; created by calling its ``Code``.

    ``code`` is the code's name; ``what`` is what is wrong; ``where`` is ``file:line`` or a key path;
    ``found`` is the value found there; ``hint`` is what to write or do instead; ``evidence`` holds extra
    facts (JSON types only).
    """

    code: str
    what: str
    where: str = ""
    found: str = ""
    hint: str = ""
    severity: Severity = Severity.ERROR
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        """Return the finding as text: a headline, then an indented line each for the value and the fix."""
        place = f"{self.where}: " if self.where else ""
        parts = [f"{self.severity.value}[{self.code}] {place}{self.what}"]
        if self.found:
            parts.append(f"    found: {self.found}")
        if self.hint:
            parts.append(
                f"    fix:   {self.hint}" if self.severity is Severity.ERROR else f"    hint:  {self.hint}"
            )
        # A multi-line value is indented and marked, so that its lines cannot pass for another finding
        return "\n".join(line for part in parts for line in _indented(part))

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a dict of plain JSON types."""
        return {**asdict(self), "severity": self.severity.value, "evidence": dict(self.evidence)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Diagnostic:
        """The inverse of ``to_json``."""
        return Diagnostic(**{**data, "severity": Severity(data.get("severity", "error"))})


@dataclass(frozen=True)
class Code:
    """A diagnostic code: a stable ``name`` (``room.short_name``) and an ``explanation`` of cause and fix.

    Calling a code creates a ``Diagnostic``. Each code is defined once, in its room's ``codes.toml``;
    ``paceline explain``, ``docs/config.md`` and the page of ``paceline watch`` print the explanation.
    ``chinese`` is its translation.
    """

    name: str
    explanation: str
    chinese: str = ""

    def __call__(
        self,
        what: str,
        where: str = "",
        found: str = "",
        hint: str = "",
        severity: Severity = Severity.ERROR,
        evidence: Mapping[str, Any] | None = None,
    ) -> Diagnostic:
        """Return a ``Diagnostic`` with this code's name; the arguments are its other fields."""
        return Diagnostic(self.name, what, where, found, hint, severity, {} if evidence is None else evidence)


@cache
def read_codes(file: Path) -> Mapping[str, Code]:
    """Return the codes of a ``codes.toml`` by constant: table ``[data.format]`` defines ``DATA_FORMAT``."""
    import tomllib  # few starts report anything

    with file.open("rb") as stream:
        groups = tomllib.load(stream)
    return {
        f"{group}_{short}".upper(): Code(f"{group}.{short}", texts["en"], texts["zh"])
        for group, entries in groups.items()
        for short, texts in entries.items()
    }


def codes_beside(module_file: str) -> Callable[[str], Code]:
    """Return the ``__getattr__`` of a room's ``codes`` module; it reads ``codes.toml`` when first called."""
    file = Path(module_file).with_suffix(".toml")

    def code(constant: str) -> Code:
        found = read_codes(file).get(constant) if constant.isupper() else None
        if found is None:
            raise AttributeError(f"{file} defines no code {constant}")
        return found

    return code


@cache
def all_codes() -> Mapping[str, Code]:
    """Return every room's codes by name."""
    return {
        code.name: code for file in sorted(PACKAGE.rglob("codes.toml")) for code in read_codes(file).values()
    }


def _indented(text: str) -> list[str]:
    first, *rest = text.split("\n")
    return [first, *(f"    | {line}" for line in rest)]


def errors(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings of severity ERROR."""
    return tuple(d for d in diagnostics if d.severity is Severity.ERROR)


def render_all(diagnostics: Iterable[Diagnostic]) -> str:
    """Return all findings as text, one after the other."""
    return "\n".join(d.render() for d in diagnostics)
