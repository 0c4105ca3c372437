"""What a row may name a picture by: a path, bytes, base64, a struct of the ``datasets`` library."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from io import BytesIO

from paceline.data.images.slots import RowImage
from paceline.data.rows.values import Cell, RowError, is_empty

_DATA_URI = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*?(;base64)?,", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:https?|ftp|s3|gs|hf|oss)://", re.IGNORECASE)
#: How pictures begin, as bytes: what a text without a path's form must decode to.
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*", b"P6", b"P5")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{16,}={0,2}\s*")
_LONGEST_PATH = 4096
_FIELDS = ("bytes", "path", "url", "image_url", "image", "base64", "data", "source")


def images_in(value: Cell) -> list[RowImage]:
    """Return the pictures of a column: one, or a list. Raises RowError."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [source_of(item) for item in values if not is_empty(item)]


def source_of(value: Cell) -> RowImage:
    """Return what a value names a picture by. Raises RowError, also for an address on the network."""
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, (bytes, bytearray)):
        return RowImage(data=bytes(value))
    if isinstance(value, Mapping):
        for name in _FIELDS:
            if not is_empty(value.get(name)):
                return source_of(value[name])
    if (save := getattr(value, "save", None)) is not None:  # Pillow's, of the user's own function
        save(stream := BytesIO(), format="PNG")
        return RowImage(data=stream.getvalue())
    raise RowError("image_missing", f"a value of type {type(value).__name__} names no picture")


def _of_text(text: str) -> RowImage:
    if _ADDRESS.match(text):
        raise RowError("image_url", text[:100])
    if uri := _DATA_URI.match(text):
        if not uri.group(1):
            raise RowError("image_damaged", f"{text[:40]!r}: only base64 is read in data: addresses")
        return RowImage(data=_decoded(text[uri.end() :]))
    if _BASE64.fullmatch(text[:64] if len(text) > _LONGEST_PATH else text) and _is_base64(text):
        return RowImage(data=_decoded(text))
    path = text.removeprefix("file://") if text.lower().startswith("file://") else text
    if not path or "\0" in path or len(path) > _LONGEST_PATH:
        raise RowError("image_missing", f"{path[:60]!r} is no path")
    return RowImage(path=path)


def _is_base64(text: str) -> bool:
    """Whether a text is the base64 of a picture: a JPEG's begins like a path from the root."""
    try:
        return base64.b64decode(text[:16]).startswith(_MAGIC)
    except (binascii.Error, ValueError):
        return False


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowError("image_damaged", f"the base64 of a picture is not valid: {error}") from error
