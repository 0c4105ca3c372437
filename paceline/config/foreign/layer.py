"""What reading other systems' files yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.config.source import FOREIGN, Entry, Source
from paceline.core.diagnostics import Diagnostic, Severity


@dataclass
class Foreign:
    """Entries of the lowest layer; ``contents``: values that replace a path by what the file holds."""

    entries: list[Entry] = field(default_factory=list)
    contents: dict[str, Any] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    """A foreign file (or a mapping inside the YAML): its data, its name and the line of each inner path."""

    data: dict[str, Any]
    name: str
    lines: dict[str, int]
    line: int | None = None

    def place(self, path: str) -> str:
        """``file:line`` of an inner path."""
        line = self.lines.get(path, self.line)
        return f"{self.name}:{line}" if line else self.name

    def entry(self, to: str, value: Any, path: str) -> Entry:
        """A setting of the lowest layer that this document's ``path`` makes."""
        return Entry(to, value, Source(FOREIGN, self.name, self.lines.get(path, self.line), path))

    def note(self, path: str, what: str, hint: str = "") -> Diagnostic:
        """Something of this document that is not taken over."""
        return Diagnostic(
            "config.foreign_not_taken", what, where=self.place(path), found=path, hint=hint, severity=Severity.NOTE
        )
