"""Merge settings that both the YAML and the launcher give, reporting every difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.config import codes
from paceline.config.backend_files.accelerate.environment import Variables
from paceline.config.backend_files.layer import Document, Foreign
from paceline.config.keys.valid_keys import same
from paceline.config.source import Entry, shown
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, inner_object


@dataclass(frozen=True)
class Blend(Document):
    """A document merged from both; ``variables`` has the places of the launcher's settings."""

    variables: Variables | None = None

    def place(self, path: str) -> str:
        """Return ``file:line``, or the launcher's variable."""
        launcher = self._launcher_of(path)
        return launcher.place(path) if launcher else super().place(path)

    def entry(self, to: str, value: Json, path: str) -> Entry:
        """Return a setting with the source that it comes from."""
        launcher = self._launcher_of(path)
        return launcher.entry(to, value, path) if launcher else super().entry(to, value, path)

    def _launcher_of(self, path: str) -> Variables | None:
        return self.variables if self.variables is not None and path in self.variables.requested else None


def blended(
    own: Document, launcher: Variables, found: Foreign, same_key: Callable[[str], str] = str
) -> Document:
    """Return ``own`` (the YAML's settings or its file's) overridden by the options given to the launcher.

    Each difference adds a warning to ``found``. ``same_key`` normalises the spelling of a key. The launcher's
    defaults do not override ``own``.
    """
    data, written = _copy(own.data), {_canonical(path, same_key): path for path, _ in _leaves(own.data)}
    for path, value in _leaves(launcher.data):
        if path not in launcher.requested:
            continue
        before = written.get(_canonical(path, same_key))
        if before is not None:
            given = _pop(data, before)
            if given != "auto" and not same(given, value):
                found.notes.append(_wins(launcher, path, value, own.place(before), given))
        _put(data, path, value)
    return Blend(data, own.name, own.lines, own.line, launcher)


def _wins(launcher: Variables, path: str, value: Json, place: str, given: Json) -> Diagnostic:
    what = f"{path} is {shown(path, value)}, as set for the launcher; {place} sets {shown(path, given)}"
    where = launcher.place(path)
    return codes.LAUNCH_OPTION_WINS(
        what, where, where.rpartition(" ")[2], "keep one of the two", Severity.WARNING
    )


def _canonical(path: str, same_key: Callable[[str], str]) -> str:
    return ".".join(same_key(part) for part in path.split("."))


def _leaves(data: JsonObject, before: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _copy(data: JsonObject) -> JsonObject:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in data.items()}


def _pop(data: JsonObject, path: str) -> Json:
    *outer, last = path.split(".")
    for part in outer:
        data = inner_object(data, part)
    return data.pop(last)


def _put(data: JsonObject, path: str, value: Json) -> None:
    *outer, last = path.split(".")
    for part in outer:
        data = inner_object(data, part)
    data[last] = value
