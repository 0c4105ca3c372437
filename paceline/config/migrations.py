"""Versions of the config's schema, and the conversion of older files.

``schema_version: N`` at the top of a YAML (or of a program's mapping) says which values and defaults it was
written for. A file without it is of the newest version. A file of an older version is read as it was meant.
Changed values are translated; defaults that have changed since are filled in below everything else. Renamed
keys need no version: ``aliases.ALIASES`` reads them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.config import codes
from paceline.config.source import DEFAULTS, Entry, Source
from paceline.config.yaml_text.tree import Node
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

KEY = "schema_version"


@dataclass(frozen=True)
class ChangedValue:
    """Values of the key at ``path`` mean something else from this version on.

    ``value``: converts an older file's value; ``what``: the change, for the note.
    """

    path: str
    what: str
    value: Callable[[Json], Json]


@dataclass(frozen=True)
class ChangedDefault:
    """The key at ``path`` has another default from this version on; ``was``: what older files mean."""

    path: str
    what: str
    was: Json


@dataclass(frozen=True)
class Migration:
    """What has changed from the version before to ``version``."""

    version: int
    changes: tuple[ChangedValue | ChangedDefault, ...]


#: Oldest first. A change of the meaning of a key that files have is a new version here, never a silent one.
MIGRATIONS: tuple[Migration, ...] = ()
_FIRST = 1


def newest() -> int:
    """Return the schema version of this Paceline."""
    return max((migration.version for migration in MIGRATIONS), default=_FIRST)


def version_of(tree: Node, name: str) -> int | None:
    """Return the version that a file or mapping states; None if it states none.

    Raises ConfigError for a version newer than this Paceline's, and for an invalid one.
    """
    node = tree.children().get(KEY) if isinstance(tree.value, dict) else None
    if node is None:
        return None
    value, location = (
        node.data(),
        f"{name}:{tree.key_lines[KEY]}" if KEY in tree.key_lines else f"{name} {KEY}",
    )
    if isinstance(value, bool) or not isinstance(value, int) or value < _FIRST:
        raise ConfigError(
            codes.CONFIG_SCHEMA_VERSION(
                "schema_version is a whole number from 1", location, str(value)[:80], f"{KEY}: {newest()}"
            )
        )
    if value > newest():
        raise ConfigError(
            codes.CONFIG_SCHEMA_VERSION(
                f"this config is written for a newer Paceline: its schema version is {value}, ours"
                f" {newest()}",
                location,
                f"{KEY}: {value}",
                f"update Paceline; or, if it uses nothing newer, {KEY}: {newest()}",
            )
        )
    return value


def migrated(entries: Sequence[Entry], version: int | None) -> tuple[list[Entry], list[Diagnostic]]:
    """Return a file's settings in today's schema, with a note for each change."""
    today, notes = list(entries), list[Diagnostic]()
    for change in _since(version):
        for number, entry in enumerate(today):
            if isinstance(change, ChangedValue) and entry.path == change.path and not entry.sub:
                today[number] = replace(entry, value=change.value(entry.value))
                if today[number].value != entry.value:
                    notes.append(_note(change, entry.source.place(), entry.value, today[number].value))
    return today, notes


def older_defaults(version: int | None, set_keys: Sequence[str]) -> tuple[list[Entry], list[Diagnostic]]:
    """Return the defaults of ``version`` that have changed since, for the lowest layer. Each that
    ``set_keys`` does not override has a note.
    """
    was: dict[str, ChangedDefault] = {}
    for change in _since(version):
        if isinstance(change, ChangedDefault):
            was.setdefault(change.path, change)
    source = Source(DEFAULTS, text=f"of schema version {version}")
    entries = [Entry(path, change.was, source) for path, change in was.items()]
    return entries, [_note(c, f"{KEY}: {version}", None, c.was) for p, c in was.items() if p not in set_keys]


def _since(version: int | None) -> Iterator[ChangedValue | ChangedDefault]:
    for migration in MIGRATIONS:
        if version is not None and migration.version > version:
            yield from migration.changes


def _note(change: ChangedValue | ChangedDefault, location: str, old: Json, new: Json) -> Diagnostic:
    read = f"read as {new}" if isinstance(change, ChangedDefault) else f"{old} is read as {new}"
    return codes.CONFIG_MIGRATED(
        location, read[:200], path=change.path, detail=change.what, new=new, key=KEY, newest=newest()
    )
