"""``${NAME}`` and ``${NAME:-default}`` in a YAML's values: replaced from the environment when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from paceline.config.scalars import resolve_plain
from paceline.config.source import is_secret_name
from paceline.config.yaml_tree import Node

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
    text = _WITH_DEFAULT.sub(lambda found: _value(found, environ), tree.value)
    if text == tree.value:
        return tree
    whole = _WITH_DEFAULT.fullmatch(tree.value)
    return replace(tree, value=resolve_plain(text) if whole else text, raw=text)


def _value(found: re.Match[str], environ: Mapping[str, str]) -> str:
    name = found[1]
    return found[0] if is_secret_name(name) else environ.get(name) or found[2]
