"""The lines of a log, in bounded memory: cut when they are long, without colours, bars split at ``\\r``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_PIECE = 8192  # bytes of a line that are looked at in one piece
_PIECES = 8  # of one line; what follows is data, no message
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_])")


def read_lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each line as an editor counts them; a line may come in several pieces."""
    number, pieces = 1, 0
    while data := file.readline(MAX_PIECE):
        pieces += 1
        if pieces <= _PIECES:
            for part in data.rstrip(b"\r\n").split(b"\r"):
                if part:
                    yield number, clean(part.decode("utf-8", "replace"))
        if data.endswith(b"\n"):
            number, pieces = number + 1, 0


def clean(text: str) -> str:
    """Return ``text`` without ANSI sequences and NUL bytes."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text.replace("\0", "")
