"""Complete lines of a growing file, in blocks of bounded size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from paceline.core.files import open_run_file, written_from
from paceline.runlog.events import MAX_LINE_BYTES

BLOCK_BYTES = 1 << 20  # lines are parsed between two looks at the clock
_HEAD_BYTES = 200  # of the first line, by which a file is recognised


@dataclass
class LineTail:
    """Where reading of ``path`` has come to.

    ``offset``: bytes whose lines were returned; ``head``: digest of the file's first bytes, by which a file
    that took the place of another is recognised.
    """

    path: Path
    offset: int = 0
    head: str = ""
    skipping: bool = False  # inside a line that is longer than MAX_LINE_BYTES

    def pending(self) -> int:
        """Return the bytes that are not read yet; 0 for a missing file."""
        try:
            return max(0, self.path.stat().st_size - self.offset)
        except OSError:
            return 0

    def replaced(self) -> bool:
        """Whether the file is gone, truncated, or another than before; reading must begin anew."""
        if not self.offset:
            return False
        try:
            with open_run_file(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                return size < self.offset or _digest(file.read(_HEAD_BYTES)) != self.head
        except OSError:
            return True

    def block(self) -> tuple[int, list[bytes]]:
        """Return the next complete lines and the byte at which the first begins.

        About BLOCK_BYTES at once; a line without its end waits, and one over MAX_LINE_BYTES is skipped.
        """
        try:
            with open_run_file(self.path) as file:
                if not self.offset:
                    self.head = _digest(file.read(_HEAD_BYTES))
                begin = written_from(file, self.offset)
                self.skipping |= begin > self.offset  # the line with the hole is no event
                self.offset = begin
                file.seek(begin)
                data = file.read(BLOCK_BYTES)
                while b"\n" not in data and not self.skipping and len(data) <= MAX_LINE_BYTES:
                    more = file.read(BLOCK_BYTES)
                    if not more:
                        return self.offset, []
                    data += more
        except OSError:
            return self.offset, []
        return self._lines(data)

    def _lines(self, data: bytes) -> tuple[int, list[bytes]]:
        begin, end = self.offset, data.rfind(b"\n") + 1
        if not end:
            # No end in sight: pass over it, if it is too long to be an event
            if self.skipping or len(data) > MAX_LINE_BYTES:
                self.skipping, self.offset = True, begin + len(data)
            return self.offset, []
        lines = data[:end].split(b"\n")[:-1]
        self.offset = begin + end
        if self.skipping:
            self.skipping = False
            begin += len(lines[0]) + 1
            lines = lines[1:]
        return begin, lines


def _digest(head: bytes) -> str:
    # Up to the first line's end: a growing file's first line stays as it is
    return sha256(head.partition(b"\n")[0]).hexdigest() if b"\n" in head or len(head) == _HEAD_BYTES else ""
