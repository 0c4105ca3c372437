"""Parse and write JSON files that others may have modified: bounded, no duplicate keys, no NaN. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from paceline.checkpoint import codes
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, unique_keys


def parse_object(
    data: bytes, where: str, *, max_bytes: int, max_depth: int = 32, max_items: int = 2_000_000
) -> JsonObject:
    """Parse one JSON object.

    Raises CheckpointError ``checkpoint.json`` for anything else, or beyond the limits.
    """
    if len(data) > max_bytes:
        raise _refused(where, f"{len(data)} bytes, at most {max_bytes} are read")
    try:
        # Duplicate keys are refused: which one counts differs between readers.
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise _refused(where, f"{type(exc).__name__}: {exc}"[:300]) from None
    if not isinstance(value, dict):
        raise _refused(where, f"a {type(value).__name__} instead of an object")
    _bound(value, where, max_depth, max_items)
    return value


def dump_object(value: Mapping[str, Json], where: str, one_line_below: int | None = None) -> bytes:
    """Return ``value`` as JSON that ``parse_object`` reads back equal.

    ``one_line_below``: write values deeper than this many levels on one line (an index of many numbers).

    Raises CheckpointError naming the key path of a value that JSON cannot hold.
    """
    _check(value, where, "")
    if one_line_below is not None:
        return _lines(value, one_line_below).encode("utf-8")
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1).encode("utf-8")


def _lines(value: Json | Mapping[str, Json], levels: int) -> str:
    if not isinstance(value, Mapping) or not levels or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    inner = (
        f"{json.dumps(key, ensure_ascii=False)}:{_lines(child, levels - 1)}" for key, child in value.items()
    )
    return "{\n" + ",\n".join(inner) + "\n}"


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _bound(value: Json, where: str, max_depth: int, max_items: int) -> None:
    # Level by level, since recursion would end at Python's own limit.
    level: list[Json] = [value]
    depth, items = 0, 0
    while level:
        depth += 1
        items += len(level)
        if depth > max_depth or items > max_items:
            raise _refused(
                where,
                f"deeper than {max_depth} levels" if depth > max_depth else f"more than {max_items} values",
            )
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]


def _check(value: Json, where: str, path: str) -> None:
    if isinstance(value, Mapping):
        for key, child in value.items():
            # Recurse with the key path, for the error message.
            if not isinstance(key, str):
                raise _unwritable(where, path, f"the key {key!r} is not text")
            _check(child, where, f"{path}.{key}" if path else key)
    elif isinstance(value, str) or value is None or isinstance(value, (bool, int)):
        return
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _unwritable(where, path, str(value))
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for index, child in enumerate(value):
            _check(child, where, f"{path}[{index}]")
    else:
        raise _unwritable(where, path, type(value).__name__)


def _refused(where: str, reason: str) -> CheckpointError:
    return CheckpointError(codes.CHECKPOINT_JSON(where, reason))


def _unwritable(where: str, path: str, value: str) -> CheckpointError:
    return CheckpointError(codes.CHECKPOINT_STATE_NOT_JSON(where, value, path=path))
