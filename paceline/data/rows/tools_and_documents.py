"""A row's inputs for the chat template besides turns: tools, documents, and template options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.data.rows.values import Cell, Row, RowError, as_json, is_empty, is_null

TOOLS = ("tools", "functions")
DOCUMENTS = "documents"
KWARGS = "chat_template_kwargs"
#: Columns that every conversation may have.
COLUMNS = frozenset({*TOOLS, DOCUMENTS, KWARGS})


def is_read(name: str, value: Cell) -> bool:
    """Whether a column is tools, documents or options, with a value of the right type."""
    if name == DOCUMENTS:
        return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return name in COLUMNS


def with_beside(example: Example, row: Row) -> Example:
    """Return a conversation with the row's tools, documents and template options. Raises RowError."""
    if not example.messages:
        return example
    full = [name for name in TOOLS if not is_empty(row.get(name))]
    tools = [tools_of(row[name], name) for name in full][-1] if full else ()
    documents = () if not is_read(DOCUMENTS, row.get(DOCUMENTS)) else _objects(row[DOCUMENTS], DOCUMENTS)
    kwargs = {} if is_empty(row.get(KWARGS)) else _kwargs(row[KWARGS])
    if not (tools or documents or kwargs):
        return example
    messages = tuple(_without_filled(message, tools) for message in example.messages)
    return replace(example, messages=messages, tools=tools, documents=documents, template_kwargs=kwargs)


def tools_of(value: Cell, name: str) -> tuple[JsonObject, ...]:
    """Return JSON schemas ``{"type": "function", "function": {…}}``; a bare function is wrapped.

    Nulls, with which a table's schema fills missing fields, are left out (except defaults).
    Raises RowError.
    """
    tools: list[JsonObject] = []
    for tool in map(_declared, _objects(value, name)):
        if not isinstance(tool.get("function"), dict):
            bare = tool.get("type") != "function"
            tool = {"function": {key: item for key, item in tool.items() if bare or key != "type"}}
        if not isinstance(_function(tool).get("name"), str):
            raise RowError("bad_tools", f"'{name}': a tool has no name")
        # Some data sets leave the type out
        tools.append({"type": "function", **tool})
    return tuple(tools)


def _objects(value: Cell, name: str) -> tuple[JsonObject, ...]:
    """Return a list of objects from a list, one object, or JSON text of either."""
    parsed = _parsed(value, name)
    items = [_parsed(item, name) for item in (parsed if isinstance(parsed, list) else [parsed])]
    objects = tuple(item for item in items if isinstance(item, dict))
    if len(objects) < len(items):
        raise RowError("bad_tools", f"'{name}' is not a list of objects")
    return objects


def _kwargs(value: Cell) -> JsonObject:
    parsed = _parsed(value, KWARGS)
    if not isinstance(parsed, dict):
        raise RowError("bad_tools", f"'{KWARGS}' is not an object")
    return {name: item for name, item in parsed.items() if item is not None}


def _parsed(value: Cell | Json, name: str) -> Json:
    if isinstance(value, str):
        try:
            parsed: Json = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RowError("bad_tools", f"'{name}' is not JSON: {value.strip()[:60]!r}") from error
        return parsed
    return as_json(value, name)


def _declared(schema: JsonObject) -> JsonObject:
    """Return a schema without null keys (except ``default``) and without objects of nulls only."""

    def declared(value: Json) -> Json:
        if isinstance(value, list):
            return [declared(item) for item in value]
        return _declared(value) if isinstance(value, dict) else value

    return {
        key: declared(item)
        for key, item in schema.items()
        if not is_null(item) or (item is None and key == "default")
    }


def _without_filled(message: Message, tools: tuple[JsonObject, ...]) -> Message:
    """Remove null arguments that the called tool does not have: a table's schema added them."""
    if not message.get("tool_calls"):
        return message
    parameters = {str(function.get("name")): function.get("parameters") for function in map(_function, tools)}
    calls: list[JsonObject] = []
    for call in message["tool_calls"]:
        function = _function(call)
        arguments, name = function["arguments"], str(function["name"])
        if isinstance(arguments, dict) and name in parameters:
            properties = as_object(as_object(parameters[name]).get("properties"))
            kept = {key: item for key, item in arguments.items() if item is not None or key in properties}
            call = {**call, "function": {**function, "arguments": kept}}
        calls.append(call)
    return {**message, "tool_calls": calls}


def _function(tool: JsonObject) -> JsonObject:
    function = tool["function"]
    assert isinstance(function, dict)
    return function
