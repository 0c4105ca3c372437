"""Parse YAML safely into a tree with line numbers: no object tags; limits on size, depth and aliases.

The tree is built from parser events, so that depth and aliases are checked before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from paceline.config import codes
from paceline.config.yaml_text import lookalike_characters
from paceline.config.yaml_text.scalars import Scalar, resolve_plain
from paceline.core.diagnostics import Code, Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

# Settings need about five levels; the builder recurses once a level
MAX_DEPTH = 32
# Aliases that multiply reach it before they take memory
MAX_NODES = 50_000
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq")
}

#: Errors of an unfinished value or key: report the line where it begins, not where the parser stopped.
_UNFINISHED = ("end of stream", "could not find expected ':'")
_SPACED = re.compile(r"^([A-Za-z_]\w*)(?: *=|:(?! )) *(\S.*)$")  # ``key:value``, ``key = value``


@dataclass
class Node:
    """A node of the tree.

    ``value`` is a scalar, a list of nodes or a dict of nodes. ``line`` counts from 1. ``raw`` is a scalar's
    text. ``size`` counts nodes with aliases expanded.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    raw: str = ""
    size: int = 1
    key_lines: dict[str, int] = field(default_factory=dict)

    def data(self) -> Json:
        """Return the plain value: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.data() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.data() for node in self.value]
        return self.value

    def children(self) -> dict[str, Node]:
        """Return the nodes of a mapping by key; nothing for a scalar or a list."""
        return self.value if isinstance(self.value, dict) else {}

    def lines(self, prefix: str = "") -> dict[str, int]:
        """Return the line of every inner path, joined by dots (``0.columns.prompt``)."""
        lines: dict[str, int] = {}
        if isinstance(self.value, dict):
            items = list(self.value.items())
        elif isinstance(self.value, list):
            items = [(str(index), node) for index, node in enumerate(self.value)]
        else:
            return lines
        for key, node in items:
            path = f"{prefix}{key}"
            lines[path] = self.key_lines.get(key, node.line)
            lines.update(node.lines(f"{path}."))
        return lines


_GLUED = re.compile(r"([A-Za-z_]\w*):([^:/].*)")


def parse_yaml(text: str, name: str, repeated: dict[str, tuple[int, int]] | None = None) -> Node | None:
    """Parse the one document in ``text``; None if it is empty. ``name`` is the file name in messages.

    ``repeated``: of another program, whose reader takes the last of two keys: gets both lines of each.

    Raises ConfigError for invalid syntax, tabs, duplicate keys, object tags, several documents, or too deep
    or too large trees.
    """
    return _Builder(name, text, repeated).build()


class _Builder:
    def __init__(self, name: str, text: str, repeated: dict[str, tuple[int, int]] | None) -> None:
        self._name, self._repeated = name, repeated
        self._text = text
        self._anchors: dict[str, Node] = {}
        # Anchors whose value is not complete: an alias to one would contain itself
        self._open_anchors: set[str] = set()
        self._slips: list[Diagnostic] = []  # reported together: duplicate keys, look-alike characters

    def build(self) -> Node | None:
        root: Node | None = None
        documents = 0
        try:
            events = self._events()
            for event in events:
                if isinstance(event, DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise self._error(
                            codes.CONFIG_SEVERAL_DOCUMENTS,
                            "the file contains several YAML documents",
                            self._line(event),
                            hint="keep one document; remove the second ---",
                        )
                elif isinstance(event, (ScalarEvent, MappingStartEvent, SequenceStartEvent, AliasEvent)):
                    root = self._node(event, events, 1)
        except YAMLError as exc:
            raise self._syntax(exc) from exc
        if self._slips:
            raise ConfigError(*self._slips)
        if root is not None and root.value is None and documents <= 1 and not root.raw.strip():
            return None
        return root

    def _events(self) -> Iterator[Event]:
        return iter(YAML(typ="safe", pure=True).parse(self._text))

    @staticmethod
    def _line(event: Event) -> int:
        return int(event.start_mark.line) + 1

    def _error(self, code: Code, what: str, line: int, found: str = "", hint: str = "") -> ConfigError:
        return ConfigError(code(what, f"{self._name}:{line}", found, hint))

    def _syntax(self, exc: YAMLError) -> ConfigError:
        # Find the line at fault
        mark = None
        if isinstance(exc, MarkedYAMLError):
            unfinished = exc.context_mark is not None and any(end in str(exc.problem) for end in _UNFINISHED)
            mark = exc.context_mark if unfinished else exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else self._text[: getattr(exc, "position", None) or 0].count("\n") + 1
        lines = self._text.splitlines()
        if line > 1 and _SPACED.match(lines[line - 2].strip()) and "mapping values" in str(exc):
            line -= 1  # the previous line's ``key:value`` was read as a text continued on this line
        # Common causes first: a tab, a look-alike character; then the parser's own message
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        if "\t" in text[: len(text) - len(text.lstrip())] or "'\\t'" in str(exc):
            return self._error(
                codes.CONFIG_YAML_TAB,
                "a tab is used where YAML expects spaces",
                line,
                found=repr(text[:60]),
                hint="indent with spaces (two per level)",
            )
        if near := lookalike_characters.near_line(lines, line):
            return ConfigError(*self._slips, self._lookalike(near[1], near[0], lines[near[0] - 1]))
        slip = _SPACED.match(text.strip())
        problem = str(getattr(exc, "problem", None) or exc).splitlines()[0]
        column = f", column {mark.column + 1}" if mark else ""
        return self._error(
            codes.CONFIG_YAML_SYNTAX,
            f"this is not valid YAML{column}: {problem}",
            line,
            found=repr(text.strip()[:80]),
            hint=(
                f"{slip[1]}: {slip[2]}"[:80]
                if slip
                else "write key: value, one per line, with the same indent within one level"
            ),
        )

    def _lookalike(self, character: str, line: int, text: str) -> Diagnostic:
        return codes.CONFIG_LOOKALIKE(
            f"{character} is used where a plain character is expected",
            f"{self._name}:{line}",
            repr(text.strip()[:80]),
            lookalike_characters.plain(text.strip())[:80],
        )

    def _look_at(self, event: ScalarEvent, line: int) -> None:
        """Report look-alike characters in a value, and in further keys that YAML read as part of it."""
        style = event.style in (None, "")
        character = (
            lookalike_characters.in_value(event.value, style) if event.style not in ("|", ">") else None
        )
        if character is None:
            return
        lines = self._text.splitlines()
        keys = lookalike_characters.key_lines(lines, line) if style else []
        texts = [(number, lines[number - 1]) for number in keys] or [(line, event.value)]
        self._slips += [self._lookalike(character, number, text) for number, text in texts]

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        assert isinstance(event, NodeEvent)  # what ends a list or a mapping, its reader has taken
        line = self._line(event)
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor, line)
        if depth > MAX_DEPTH:
            raise self._error(
                codes.CONFIG_YAML_DEPTH,
                f"the YAML is nested more than {MAX_DEPTH} levels deep",
                line,
                hint="settings need about five levels",
            )
        kind = self._tag(event, line)
        if event.anchor:
            self._open_anchors.add(event.anchor)
        if isinstance(event, ScalarEvent):
            node = Node(self._scalar(event, kind), line, raw=event.value)
            if not event.value.isascii():
                self._look_at(event, line)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(events, line, depth)
        else:
            node = self._mapping(events, line, depth)
        self._limit(node, line)
        if event.anchor:
            self._open_anchors.discard(event.anchor)
            self._anchors[event.anchor] = node
        return node

    def _limit(self, node: Node, line: int) -> None:
        if node.size > MAX_NODES:
            raise self._error(
                codes.CONFIG_YAML_BOMB,
                f"the YAML expands to more than {MAX_NODES} values",
                line,
                found="aliases that multiply",
                hint="write the values out, or use fewer aliases",
            )

    def _alias(self, anchor: str, line: int) -> Node:
        if anchor in self._open_anchors:
            raise self._error(
                codes.CONFIG_YAML_RECURSION,
                f"alias *{anchor} refers to a value that contains it",
                line,
                hint="refer only to values that are complete",
            )
        if anchor not in self._anchors:
            raise self._error(
                codes.CONFIG_YAML_ALIAS,
                f"alias *{anchor} has no anchor &{anchor} above it",
                line,
                hint=f"define &{anchor} first",
            )
        return self._anchors[anchor]

    def _tag(self, event: NodeEvent, line: int) -> str | None:
        ctag = getattr(event, "ctag", None)
        tag = None if ctag is None else str(ctag)
        if tag in (None, "None", "!", ""):
            return None
        if tag not in _PLAIN_TAGS:
            raise self._error(
                codes.CONFIG_YAML_TAG,
                "YAML tags that create objects are refused",
                line,
                found=tag,
                hint="write a plain value without the tag",
            )
        return _PLAIN_TAGS[tag]

    def _scalar(self, event: ScalarEvent, kind: str | None) -> Scalar:
        plain = event.style in (None, "") and kind != "str"
        return (
            resolve_plain(event.value) if plain or kind in ("int", "float", "bool", "null") else event.value
        )

    def _sequence(self, events: Iterator[Event], line: int, depth: int) -> Node:
        items: list[Node] = []
        node = Node(items, line)
        for event in events:
            if isinstance(event, SequenceEndEvent):
                return node
            child = self._node(event, events, depth + 1)
            items.append(child)
            node.size += child.size
            self._limit(node, child.line)
        return node

    def _mapping(self, events: Iterator[Event], line: int, depth: int) -> Node:
        children: dict[str, Node] = {}
        node = Node(children, line)
        merges: list[Node] = []
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key_line = self._line(event)
            if not isinstance(event, ScalarEvent):
                raise self._error(
                    codes.CONFIG_YAML_KEY,
                    "a key must be a word",
                    key_line,
                    found="a list or mapping as a key",
                    hint="key: value",
                )
            self._tag(event, key_line)
            child = self._node(next(events), events, depth + 1)
            node.size += child.size
            self._limit(node, key_line)
            if event.value == "<<" and event.style in (None, ""):
                merges += child.value if isinstance(child.value, list) else [child]
            else:
                self._put(node.key_lines, children, event.value, child, key_line)
        # Merge keys (<<) give way to keys of the mapping itself
        for merged in merges:
            if not isinstance(merged.value, dict):
                raise self._error(
                    codes.CONFIG_YAML_MERGE,
                    "<<: merges mappings only",
                    merged.line,
                    hint="<<: *anchor_of_a_mapping",
                )
            for key, child in merged.value.items():
                children.setdefault(key, child)
                node.key_lines.setdefault(key, merged.key_lines[key])
        return node

    def _put(
        self, key_lines: dict[str, int], children: dict[str, Node], key: str, child: Node, line: int
    ) -> None:
        if not key.isascii() and (character := lookalike_characters.in_key(key)):
            self._slips.append(self._lookalike(character, line, f"{key}:"))
        if key in children and self._repeated is not None:
            self._repeated[key] = key_lines[key], line
        elif key in children:
            self._slips.append(
                codes.CONFIG_DUPLICATE_KEY(
                    f"'{key}' is given twice, first in line {key_lines[key]}",
                    where=f"{self._name}:{line}",
                    found=f"line {key_lines[key]} and line {line}",
                    hint="keep one of the two lines",
                )
            )
            return
        if child.value is None and (glued := _GLUED.fullmatch(key)):  # {r:8} is the key "r:8" in YAML
            self._slips.append(
                codes.CONFIG_YAML_SYNTAX(
                    "a blank is missing after the colon",
                    f"{self._name}:{line}",
                    key,
                    f"{glued[1]}: {glued[2]}",
                )
            )
        children[key] = child
        key_lines[key] = line
