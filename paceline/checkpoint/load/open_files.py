"""A checkpoint's shards, opened when wanted and only so many at a time. No torch."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged, incomplete
from paceline.checkpoint.format.verify_files import open_if_there, open_part
from paceline.core.errors import CheckpointError

AT_ONCE = 64  # open shards of one reader
Owners = range | tuple[int, ...]  # ranks


class Elsewhere(Protocol):
    """Where files are that are not in a checkpoint's folder here."""

    def fetch(self, name: str) -> None:
        """Bring a file into the folder.

        Raises CheckpointError: ``checkpoint.damaged`` if no node has it as it was saved.
        """
        ...

    def owners(self, name: str) -> Owners:
        """Return ranks that see one disk which has it."""
        ...

    @property
    def disk_of_ranks(self) -> Sequence[int]:
        """By rank, the number of the disk that it sees."""
        ...


class OpenFiles:
    """The shards ``names`` in ``path`` by number. A file that is opened again must be the same file.

    One that is missing is brought from ``elsewhere``. Raises CheckpointError if one is missing, is no
    regular file, was replaced, or ends early. While ``damage_is_found_later`` (by hashes that do not fit),
    one that is damaged on every node that has it reads as zeros.
    """

    def __init__(
        self, path: Path, names: Sequence[str], sizes: Sequence[int], elsewhere: Elsewhere | None = None
    ) -> None:
        self.path = path
        self.names = names
        self.sizes = sizes
        self.num_read = 0  # bytes that were asked of the file system
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._elsewhere = elsewhere
        self._lost: dict[int, CheckpointError] = {}
        self.damage_is_found_later = False

    def file(self, number: int) -> BinaryIO:
        """Return the open file; the ones that were not used for longest are closed."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        name = self.names[number]
        file = open_if_there(self.path, name) or self._fetched(number, name)
        self._open[number] = file
        info = os.fstat(file.fileno())
        if info.st_size != self.sizes[number]:
            raise damaged(self.path, name, f"{info.st_size} bytes instead of {self.sizes[number]}")
        identity = (info.st_dev, info.st_ino, info.st_mtime_ns)
        if self._seen.setdefault(number, identity) != identity:
            raise damaged(self.path, name, "it was replaced or written to while it was being read")
        while len(self._open) > AT_ONCE:
            self._open.popitem(last=False)[1].close()
        return file

    def read_into(self, view: memoryview, number: int, at: int) -> None:
        """Fill ``view`` with the bytes at ``at``."""
        try:
            descriptor = self.file(number).fileno()
        except CheckpointError:
            if number not in self._lost or not self.damage_is_found_later:
                raise
            view[:] = bytes(len(view))
            return
        self.num_read += len(view)
        while view:
            got = os.preadv(descriptor, [view], at)
            if got == 0:
                raise damaged(self.path, self.names[number], f"it ended at byte {at}")
            view, at = view[got:], at + got

    def _fetched(self, number: int, name: str) -> BinaryIO:
        if self._elsewhere is None:
            raise incomplete(self.path, f"{name} is missing")
        if number in self._lost:
            raise self._lost[number]
        try:
            self._elsewhere.fetch(name)
        except CheckpointError as error:
            if error.diagnostics[0].code == codes.CHECKPOINT_DAMAGED.name:
                self._lost[number] = error
            raise
        return open_part(self.path, name)

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        while self._open:
            self._open.popitem()[1].close()
