"""Calls of tools in all published spellings, as the ``tool_calls`` that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from paceline.core.json_types import JsonObject
from paceline.data.rows.values import Cell, RowError, as_json, as_text, is_empty

_ARGUMENTS = ("arguments", "parameters")


def parsed(value: Cell) -> Cell:
    """Return the JSON in a text, other values as they are. Raises RowError."""
    if not isinstance(value, str):
        return value
    try:
        found: Cell = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("bad_tool_call", f"{value.strip()[:60]!r} is not JSON") from error
    return found


def calls_of(value: Cell, number: int) -> list[JsonObject]:
    """Return the calls of turn ``number`` as ``{"type": "function", "id"?, "function": {"name",
    "arguments"}}``. Raises RowError.
    """
    calls: list[JsonObject] = []
    for item in value if isinstance(value, list) else [value]:
        call = parsed(item)
        if not isinstance(call, Mapping):
            raise RowError("bad_tool_call", f"turn {number}: {str(call)[:60]!r} is not a call")
        function = parsed(call.get("function", call))
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError("bad_tool_call", f"turn {number}: a call has no name")
        arguments = as_json(function.get(_given(function), {}), "arguments")
        made: JsonObject = {
            "name": str(function["name"]),
            "arguments": {} if arguments is None else arguments,
        }
        one: JsonObject = {"type": "function", "function": made}
        if call.get("id"):
            one["id"] = as_text(call["id"], "id")
        calls.append(one)
    return calls


def unread_in_calls(value: Cell) -> Iterator[str]:
    """Yield the fields of calls, as ``[].function.strict``, that ``calls_of`` does not read."""
    try:
        found = parsed(value)
        for item in found if isinstance(found, list) else [found]:
            call = parsed(item)
            if isinstance(call, Mapping):
                function = parsed(call.get("function", call))
                inside = function if isinstance(function, Mapping) else {}
                own = ("function",) if "function" in call else ("name", _given(inside))
                typed = call.get("type") in (None, "function")
                yield from _others(call, (*own, "id", *(("type",) if typed else ())), "[]")
                if "function" in call:
                    yield from _others(inside, ("name", _given(inside)), "[].function")
    except RowError:  # a row whose calls cannot be read is refused
        return


def _given(function: Mapping[str, Cell]) -> str:
    """Return the field with the arguments: of both, the first that says something."""
    return next((name for name in _ARGUMENTS if not is_empty(function.get(name))), _ARGUMENTS[0])


def _others(fields: Mapping[str, Cell], read: tuple[str, ...], place: str) -> Iterator[str]:
    yield from (
        f"{place}.{name}" for name, value in fields.items() if name not in read and not is_empty(value)
    )
