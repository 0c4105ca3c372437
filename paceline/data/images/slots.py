"""Slots: where the pictures of a row stand in its texts, from its rows to the tokens.

A slot is a pair of characters of a private plane around the picture's number; no text is written with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from paceline.core.json_types import JsonObject

_BEGIN, _END = "\U000f5a11", "\U000f5a12"
SLOT = re.compile(f"{_BEGIN}([0-9]+){_END}")


class RowImage(NamedTuple):
    """A picture of a row: a file's ``path``, or its ``data``.

    Once opened: its upright size in pixels, the sha256 of its bytes as hex, their number, and the file's time
    of change in ns.
    """

    path: str = ""
    data: bytes = b""
    width: int = 0
    height: int = 0
    digest: str = ""
    size: int = 0
    stamp: int = 0


def slot(number: int) -> str:
    """Return the slot of a picture."""
    return f"{_BEGIN}{number}{_END}"


def has_slot(text: str) -> bool:
    """Whether a text has a picture."""
    return _BEGIN in text


def numbers_in(texts: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of the pictures in texts, in order."""
    for text in texts:
        if _BEGIN in text:
            yield from map(int, SLOT.findall(text))


def parts_of(content: str) -> list[JsonObject]:
    """Return a content as the parts that chat templates read: texts and pictures."""
    parts: list[JsonObject] = []
    for number, piece in enumerate(SLOT.split(content)):
        if number % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def pieces_of(content: str) -> list[str]:
    """Return the texts between the pictures of a content, without blanks around them."""
    return [piece for piece in (text.strip() for text in SLOT.split(content)[::2]) if piece]
