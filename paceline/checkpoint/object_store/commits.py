"""Commits: numbered records, each created once, that name all checkpoints of a URL.

A writer of record n + 1 knows record n, and none is ever removed, so the newest is found by its name, without
a listing. Only checkpoints in the last record exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline.checkpoint import codes
from paceline.checkpoint.errors import newer
from paceline.checkpoint.format.strict_json import dump_object, parse_object
from paceline.checkpoint.format.verify_files import is_step_name
from paceline.checkpoint.object_store.interface import ObjectStore, again
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject, as_object

FORMAT, VERSION = "paceline-objects", 1
COMMITS, DATA = "commits", "data"
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class StoredCheckpoint:
    """A committed checkpoint; ``folder`` holds its files under their names, the manifest among them."""

    name: str
    step: int
    sequence: int
    num_bytes: int
    folder: str

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "step": self.step,
            "sequence": self.sequence,
            "bytes": self.num_bytes,
            "folder": self.folder,
        }


@dataclass(frozen=True)
class Commit:
    """One record: the checkpoints, oldest first, and folders that are no longer named but not yet removed."""

    number: int
    writer: str
    created: float  # unix seconds
    checkpoints: tuple[StoredCheckpoint, ...]
    dropped: tuple[str, ...] = ()

    @property
    def object_name(self) -> str:
        return numbered(COMMITS, self.number)

    def to_bytes(self) -> bytes:
        content: JsonObject = {
            "format": FORMAT,
            "version": VERSION,
            "number": self.number,
            "writer": self.writer,
            "created": self.created,
            "checkpoints": [checkpoint.to_json() for checkpoint in self.checkpoints],
            "dropped": list(self.dropped),
        }
        return dump_object(content, COMMITS)


def numbered(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.json"


def last_number(exists: Callable[[int], bool]) -> int:
    """Return the largest number that exists; 0 if 1 does not. Numbers are without gaps: it asks 2 log2 of it
    times.
    """
    # Doubling, then halving: a listing may be late, a question for one name is not.
    above = 1
    while exists(above):
        above *= 2
    low = above // 2
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if exists(middle) else (low, middle)
    return low


def last_object(store: ObjectStore, folder: str) -> int:
    """Return the number of the newest object of a folder of numbered ones."""
    return last_number(lambda number: again(lambda: store.facts(numbered(folder, number))) is not None)


def read_head(store: ObjectStore, where: str) -> tuple[int, Commit | None]:
    """Return the number of the newest record, and the newest readable record: a record that was only partly
    written commits nothing.

    Raises CheckpointError ``checkpoint.newer``.
    """
    last = last_object(store, COMMITS)
    # A writer killed in the middle of a put may leave a torn record; the one before it still holds.
    for number in range(last, 0, -1):
        commit = read_commit(store, number, where)
        if commit is not None:
            return last, commit
    return last, None


def read_commit(store: ObjectStore, number: int, where: str) -> Commit | None:
    """Return a record; None if it is missing or only partly written. Raises CheckpointError
    ``checkpoint.newer``."""
    content = again(lambda: store.get(numbered(COMMITS, number)))
    if content is None:
        return None
    try:
        return _commit(parse_object(content, where, max_bytes=_MAX_BYTES, max_depth=4), number, where)
    except CheckpointError as error:
        if error.diagnostics[0].code == codes.CHECKPOINT_NEWER.name:
            raise
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _commit(data: JsonObject, number: int, where: str) -> Commit | None:
    if data.get("format") != FORMAT or data.get("number") != number:
        return None
    version = data.get("version")
    if type(version) is int and version > VERSION:
        raise newer(where, version, VERSION, "")
    checkpoints, dropped, created = data["checkpoints"], data["dropped"], data["created"]
    if not isinstance(checkpoints, list) or not isinstance(dropped, list) or not isinstance(created, float):
        return None
    return Commit(
        number,
        str(data["writer"]),
        created if math.isfinite(created) else 0.0,
        tuple(_stored(as_object(entry)) for entry in checkpoints),
        tuple(_folder(entry) for entry in dropped),
    )


def _stored(data: JsonObject) -> StoredCheckpoint:
    name, (step, sequence, size) = str(data["name"]), (data["step"], data["sequence"], data["bytes"])
    if not is_step_name(name) or not (type(step) is type(sequence) is type(size) is int):
        raise ValueError("a checkpoint's entry")
    assert isinstance(step, int) and isinstance(sequence, int) and isinstance(size, int)
    return StoredCheckpoint(name, step, sequence, size, _folder(data["folder"]))


def _folder(value: object) -> str:
    """Return the name of a folder below ``data``; refuse others, since dropped folders are deleted."""
    if not isinstance(value, str) or not value.startswith(f"{DATA}/step-") or value.count("/") != 1:
        raise ValueError("a folder")
    return value
