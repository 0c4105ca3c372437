"""``extends:``: files below a config, whose keys it overrides one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.detect import (
    another_structure,
    no_config,
    no_config_text,
    not_a_config,
)
from paceline.config.source import is_secret_name
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.config.yaml_text.tree import Node, parse_yaml
from paceline.core.errors import ConfigError

KEY = "extends"
# Other files are not shown in messages: extends: /etc/shadow must print nothing of it
_SUFFIXES = (".yaml", ".yml", ".json")


def trees(path: str | None, environ: Mapping[str, str]) -> list[tuple[str, Node]]:
    """Return the YAML file and the files that it extends, the lowest first, by name. Raises ConfigError."""
    if path is None:
        return []
    if wrong := no_config(path):
        raise ConfigError(wrong)
    text = read_text(path)
    if wrong := no_config_text(text, path):
        raise ConfigError(wrong)
    tree = parse_yaml(text, path)
    if tree is None:
        raise ConfigError(codes.CONFIG_EMPTY_FILE(path))
    data = tree.data()
    if foreign := not_a_config(data, path) or another_structure(data, path):
        raise ConfigError(foreign)
    return [(name, expanded(inner, environ)) for name, inner in _chain(path, tree)]


def _chain(path: str, tree: Node, above: tuple[str, ...] = ()) -> list[tuple[str, Node]]:
    """Return the files that ``tree`` (of ``path``) extends, the lowest first, and itself last.

    Relative paths are those of the file that names them. Raises ConfigError for a cycle, a missing file or
    a file of another system.
    """
    mine = (*above, str(Path(path).resolve()))
    chain: list[tuple[str, Node]] = []
    for name, line in _named(path, tree):
        file = Path(path).parent / Path(name).expanduser()
        origin = f"{path}:{line}"
        if str(file.resolve()) in mine:
            ring = " -> ".join(Path(step).name for step in (*mine, str(file.resolve())))
            raise ConfigError(
                codes.CONFIG_EXTENDS(
                    f"extends: goes round in a circle: {ring}", origin, name, "remove one of these extends:"
                )
            )
        if not file.is_file():
            raise ConfigError(
                codes.CONFIG_EXTENDS(
                    f"{file} does not exist", origin, name, f"give a path relative to {Path(path).parent}/"
                )
            )
        inner = _parsed(file)
        if inner is None:
            continue
        if wrong := not_a_config(inner.data(), str(file)) or another_structure(inner.data(), str(file)):
            raise ConfigError(wrong)
        chain += _chain(str(file), inner, mine)
    return [*chain, (path, _without(tree))]


def _parsed(file: Path) -> Node | None:
    """Parse a file that a config extends.

    Raises ConfigError. The error quotes the line at fault only where the name is a YAML file's. Nobody can
    read other files through the messages of a config.
    """
    try:
        return parse_yaml(read_text(str(file)), str(file))
    except ConfigError as error:
        if file.suffix.lower() in _SUFFIXES:
            raise
        hint = f"name a file of {', '.join(_SUFFIXES)}; its lines are shown only then"
        place = error.diagnostics[0].where
        raise ConfigError(codes.CONFIG_EXTENDS("extends: names no YAML", place, str(file), hint)) from None


def _without(tree: Node) -> Node:
    """Return the tree without its key ``extends``."""
    if not isinstance(tree.value, dict) or KEY not in tree.value:
        return tree
    rest = {key: node for key, node in tree.value.items() if key != KEY}
    return Node(rest, tree.line, tree.raw, tree.size, tree.key_lines)


def _named(path: str, tree: Node) -> list[tuple[str, int]]:
    node = tree.children().get(KEY)
    if node is None or node.value is None:
        return []
    items = node.value if isinstance(node.value, list) else [node]
    files: list[tuple[str, int]] = []
    for item in items:
        if not isinstance(item.value, str) or not item.value:
            raise ConfigError(
                codes.CONFIG_EXTENDS(
                    "extends: names files",
                    f"{path}:{item.line}",
                    item.raw,
                    "extends: base.yaml, or a list of paths",
                )
            )
        files.append((item.value, item.line))
    return files


_WITH_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^{}]*)\}")


def expanded(tree: Node, environ: Mapping[str, str]) -> Node:
    """Return the tree with every ``${NAME:-default}`` replaced by the variable, or by the default.

    A variable named like a secret stays as it is, and is reported as before. A value that is one expression
    is read like an unquoted scalar: ``${LR:-1e-4}`` is a number.
    """
    if isinstance(tree.value, dict):
        return replace(tree, value={key: expanded(node, environ) for key, node in tree.value.items()})
    if isinstance(tree.value, list):
        return replace(tree, value=[expanded(node, environ) for node in tree.value])
    if not isinstance(tree.value, str) or "${" not in tree.value:
        return tree
    text = _WITH_DEFAULT.sub(lambda match: _value(match, environ), tree.value)
    if text == tree.value:
        return tree
    return replace(tree, value=resolve_plain(text) if _WITH_DEFAULT.fullmatch(tree.value) else text, raw=text)


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name = match[1]
    return match[0] if is_secret_name(name) else environ.get(name) or match[2]
