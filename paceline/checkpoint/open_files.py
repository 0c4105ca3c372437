"""A checkpoint's shards, opened when wanted and only so many at a time. No torch."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from paceline.checkpoint.manifest import open_part
from paceline.checkpoint.refused import damaged, incomplete

AT_ONCE = 64  # open shards of one reader


class OpenFiles:
    """The shards ``names`` in ``path`` by number. A file that is opened again must be the same file.

    Raises CheckpointError if one is missing, is no regular file, was replaced, or ends early.
    """

    def __init__(self, path: Path, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.path = path
        self.names = names
        self.sizes = sizes
        self.num_read = 0  # bytes that were asked of the file system
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._seen: dict[int, tuple[int, int, int]] = {}

    def file(self, number: int) -> BinaryIO:
        """Return the open file; the ones that were not used for longest are closed."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        name = self.names[number]
        try:
            file = open_part(self.path, name)
        except FileNotFoundError:
            raise incomplete(self.path, f"{name} is missing") from None
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
        descriptor = self.file(number).fileno()
        self.num_read += len(view)
        while view:
            got = os.preadv(descriptor, [view], at)
            if got == 0:
                raise damaged(self.path, self.names[number], f"it ended at byte {at}")
            view, at = view[got:], at + got

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        while self._open:
            self._open.popitem()[1].close()
