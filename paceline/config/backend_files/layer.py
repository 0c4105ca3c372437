"""Results of reading other systems' files."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from paceline.config import codes
from paceline.config.source import FOREIGN, Entry, Source
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, as_object, nearest_key, put_at

Item = TypeVar("Item")


def inside(by_path: Mapping[str, Item], block: str) -> dict[str, Item]:
    """Return the items at paths inside ``block``, by their paths in it."""
    start = f"{block}."
    return {path.removeprefix(start): item for path, item in by_path.items() if path.startswith(start)}


@dataclass
class Foreign:
    """Entries of the lowest layer; ``contents``: values that replace a path by a file's content.

    ``blocks``: FSDP and DeepSpeed settings of an Accelerate file, used if the config has none of its own.
    """

    entries: list[Entry] = field(default_factory=list)
    contents: JsonObject = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    blocks: dict[str, Document | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A foreign file (or a mapping inside the YAML): its data, its name and the line of each inner path.

    ``above``: keys that the command line or the environment has set in it.
    """

    data: JsonObject
    name: str
    lines: dict[str, int]
    line: int | None = None
    above: Mapping[str, Source] = field(default_factory=dict, kw_only=True)

    def place(self, path: str) -> str:
        """Return ``file:line`` of an inner path, or where it was set above the file."""
        return self.source(path).place()

    def source(self, path: str) -> Source:
        """Return the source of an inner path."""
        return self.above.get(path) or Source(FOREIGN, self.name, self._line(path), path)

    def _line(self, path: str) -> int | None:
        """Return the line of a path, else of the block that would contain it."""
        return self.lines.get(nearest_key(self.lines, path), self.line)

    def entry(self, to: str, value: Json, path: str) -> Entry:
        """Return a setting of the lowest layer that comes from this document's ``path``."""
        return Entry(to, value, self.source(path))

    def with_keys(self, keys: Sequence[Entry]) -> Document:
        """Return the document with inner keys set, each entry's ``sub`` in order."""
        if not keys:
            return self
        data = copy.deepcopy(self.data)
        for key in keys:
            put_at(data, key.sub, key.value)
        return replace(self, data=data, above={".".join(key.sub): key.source for key in keys})

    def part(self, block: str) -> Document:
        """Return the document of an inner block."""
        return Document(
            as_object(self.data[block]),
            self.name,
            inside(self.lines, block),
            self.lines.get(block, self.line),
            above=inside(self.above, block),
        )

    def bare(self, path: str) -> Document:
        """Return a document without keys, at the place of ``path``."""
        return Document({}, self.name, {}, self._line(path))

    def made(self, data: JsonObject, origin: Mapping[str, str]) -> Document:
        """Return a document derived from this one; ``origin``: path in ``data`` → the key it comes from."""
        lines = {path: self.lines.get(key, self.line or 1) for path, key in origin.items()}
        above = {path: self.above[key] for path, key in origin.items() if key in self.above}
        return Document(data, self.name, lines, self.line, above=above)

    def note(self, path: str, what: str, hint: str = "", severity: Severity = Severity.NOTE) -> Diagnostic:
        """Return a finding about a translated or ignored setting; a WARNING if the user asked for it."""
        return codes.CONFIG_FOREIGN_NOT_TAKEN(
            what, where=self.place(path), found=path, hint=hint, severity=severity
        )


class SettingsReader:
    """Reads a document into the lowest layer; reports what it translates, ignores or refuses."""

    def __init__(self, document: Document, layer: Foreign) -> None:
        self.document = document
        self.layer = layer

    def set_entry(self, to: str, value: Json, path: str) -> None:
        """Set the canonical path ``to``."""
        self.layer.entries.append(self.document.entry(to, value, path))

    def note(self, path: str, message: str, remedy: str = "", severity: Severity = Severity.NOTE) -> None:
        """Report a setting that is translated or ignored."""
        self.layer.notes.append(self.document.note(path, message, remedy, severity))

    def problem(self, code: Code, message: str, path: str, value: str, remedy: str) -> None:
        """Report a setting that is refused."""
        self.layer.problems.append(code(message, self.document.place(path), value, remedy))
