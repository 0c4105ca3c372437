"""What the readers of DeepSpeed's JSON share: one document, what higher layers set, and the ways to take or say something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.config.foreign.layer import Document, Foreign
from paceline.core.diagnostics import Code, Severity


class Teller:
    """Makes entries of the lowest layer from the normal form of one document. ``given``: what higher layers set, by path."""

    def __init__(self, document: Document, found: Foreign, normal: dict[str, Any], given: Mapping[str, Any]) -> None:
        self.document = document
        self.found = found
        self.normal = normal
        self.given = given

    def take(self, to: str, value: Any, path: str) -> None:
        """``value`` at the canonical path ``to``, unless it is null or ``"auto"``."""
        if given_value(value):
            self.found.entries.append(self.document.entry(to, value, path))

    def default(self, to: str, value: Any, path: str, says: str, hint: str = "") -> None:
        """The value that DeepSpeed takes for an absent key, and a note of it; nothing where a higher layer sets its counterpart."""
        if to not in self.given:
            self.take(to, value, path)
            self.note(path, says, hint)

    def note(self, path: str, what: str, hint: str = "") -> None:
        """Something translated or not taken over."""
        self.found.notes.append(self.document.note(path, what, hint))

    def warn(self, path: str, what: str, hint: str = "") -> None:
        """Something asked for in earnest that is done otherwise."""
        self.found.notes.append(self.document.note(path, what, hint, Severity.WARNING))

    def problem(self, code: Code, what: str, path: str, found: str, hint: str) -> None:
        """Something that is refused."""
        self.found.problems.append(code(what, where=self.document.place(path), found=found, hint=hint))

    def typed(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """(type, params) of the block ``optimizer`` or ``scheduler``; None where there is none."""
        block = self.normal.get(name)
        if not isinstance(block, dict):
            return None
        params = block.get("params")
        return str(block.get("type") or ""), params if isinstance(params, dict) else {}


def given_value(value: Any) -> bool:
    """Whether a value of the JSON says something: null and ``"auto"`` do not."""
    return value is not None and value != "auto"


def number_in(value: Any) -> bool:
    """Whether a value is a number (and no boolean)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
