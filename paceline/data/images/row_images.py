"""Find the pictures of a row, in columns, in parts of turns and in tags, and put a slot where each stands.

What a row may name a picture by: a path, bytes, base64, a struct of the ``datasets`` library.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO

from paceline.data.images.slots import RowImage, numbers_in, slot
from paceline.data.rows.formats import IMAGE_COLUMNS, IMAGE_PARTS, Example
from paceline.data.rows.messages import ROLE_NAMES
from paceline.data.rows.values import Cell, Row, RowError, is_empty

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


#: Fields in which parts of turns name their picture.
_NAMED_BY = ("image", "image_url", "url", "path", "base64", "source", "data", "bytes")
#: <image> takes the next picture of the row (LLaVA, LLaMA-Factory, ms-swift); <img>PATH</img> names its own.
_TAG = re.compile(r"<image>|<img>(.*?)</img>", re.DOTALL)
#: Columns of texts in the order in which their marks take pictures; the answers of a pair begin anew.
_QUESTIONS = (
    *("system", "history", "messages", "conversations", "prompt", "instruction", "input", "query"),
    *("question", "text", "sentence", "content", "review", "document"),
)
_COMPARED = ("chosen", "rejected")


def with_slots(row: Row, columns: Mapping[str, str]) -> tuple[Row, list[RowImage]]:
    """Return a row with slots in place of its pictures, and the pictures by number.

    ``columns``: of its format, by name. Marks take the pictures of the row's column in order; without any
    mark they stand before the first question. Raises RowError if there are more of one than of the other.
    """
    given = [name for name in IMAGE_COLUMNS if not is_empty(row.get(columns.get(name, name)))]
    listed = [image for name in given for image in images_in(row[columns.get(name, name)])]
    writer, rest = (
        _SlotWriter(listed),
        {key: value for key, value in row.items() if key not in _held(columns)},
    )
    texts = {name: columns[name] for name in columns if name not in IMAGE_COLUMNS and columns[name] in rest}
    for name in sorted((n for n in texts if n not in _COMPARED), key=_order):
        rest[texts[name]] = writer.replaced(rest[texts[name]])
    after, most = writer.taken, writer.taken
    for name in (n for n in _COMPARED if n in texts):
        value = rest[texts[name]]
        writer.taken = 0 if _begins_conversation(value) else after
        rest[texts[name]] = writer.replaced(value)
        most = max(most, writer.taken)
    if writer.listed and not most:
        _put_first(rest, texts, "".join(map(slot, range(writer.listed))))
    elif most != writer.listed:
        raise RowError("image_count", f"{most} marks, {writer.listed} pictures")
    return rest, writer.images


def _held(columns: Mapping[str, str]) -> set[str]:
    return {columns.get(name, name) for name in IMAGE_COLUMNS}


def _order(name: str) -> int:
    return _QUESTIONS.index(name) if name in _QUESTIONS else len(_QUESTIONS)


@dataclass
class _SlotWriter:
    """``images``: the row's own, then those that marks name; ``taken``: how many of the first marks took."""

    images: list[RowImage]
    listed: int = 0
    taken: int = 0
    known: dict[RowImage, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listed = len(self.images)

    def replaced(self, value: Cell, name: str = "") -> Cell:
        """Return a text, or turns, with slots."""
        if isinstance(value, str):
            return _TAG.sub(self._tag, value) if "<im" in value else value
        if isinstance(value, (list, tuple)):
            return [self.replaced(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if value.get("type") in IMAGE_PARTS:
            return {"type": "text", "text": self._part(value)}
        held = {"content", "value", "text"} & value.keys()
        return {**value, **{key: self.replaced(value[key]) for key in held}} if held else value

    def _tag(self, match: re.Match[str]) -> str:
        return self._next() if match.group(1) is None else self._named(match.group(1).strip())

    def _part(self, part: Mapping[str, Cell]) -> str:
        source = next((part[key] for key in _NAMED_BY if not is_empty(part.get(key))), None)
        return self._next() if source is None else self._named(source)

    def _next(self) -> str:
        self.taken += 1
        if self.taken > self.listed:
            raise RowError("image_count", f"more than {self.listed} marks, {self.listed} pictures")
        return slot(self.taken - 1)

    def _named(self, source: Cell) -> str:
        image = source_of(source)
        number = self.known.setdefault(image, len(self.images))
        if number == len(self.images):
            self.images.append(image)
        return slot(number)


def _begins_conversation(value: Cell) -> bool:
    """Whether an answer of a pair is a conversation of its own, so that its marks begin anew."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and _role(first) in ("user", "system", "developer")


def _role(turn: Mapping[str, Cell]) -> str:
    return ROLE_NAMES.get(str(turn.get("role", turn.get("from"))), "")


def _put_first(row: dict[str, Cell], texts: Mapping[str, str], slots: str) -> None:
    """Put slots before the first question. Raises RowError if there is none."""
    names = (*(n for n in _QUESTIONS if n in texts and n not in ("system", "history")), *texts)
    for name in dict.fromkeys(names):
        if (value := _with_first(row.get(texts[name]), slots)) is not None:
            row[texts[name]] = value
            if name not in _COMPARED:
                return
    if not any(slots in text for text in _texts(row.values())):
        raise RowError(
            "image_count", "pictures without a mark, and no question before which they could stand"
        )


def _with_first(value: Cell, slots: str) -> Cell:
    """Return a text, or turns, with slots before the first question; None if it has none."""
    if isinstance(value, str):
        return slots + value
    turns = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    for number, turn in enumerate(turns):
        if isinstance(turn, Mapping) and _role(turn) == "user":
            key = "content" if "content" in turn else "value"
            content = turn.get(key)
            before: Cell = [{"type": "text", "text": slots}, *content] if isinstance(content, list) else None
            question = {**turn, key: slots + str(content or "") if before is None else before}
            return [*turns[:number], question, *turns[number + 1 :]]
    return None


def _texts(values: Iterable[Cell]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)


def with_pictures(examples: Sequence[Example], images: Sequence[RowImage]) -> tuple[Example, ...]:
    """Return examples with the pictures whose slots their texts have, in order."""
    return tuple(
        replace(example, images=tuple(images[n] for n in numbers_in(texts_of(example))))
        for example in examples
    )


def texts_of(example: Example) -> Iterable[str]:
    """Yield the texts of an example in which pictures may stand."""
    return (m["content"] for m in example.messages) if example.messages else (example.text,)
