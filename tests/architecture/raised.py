"""Which places raise which codes: those that name a Code object, and do more with it than compare its
name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from importlib import import_module

from sources import Source, sources

CODE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")


def uses(source: Source) -> dict[str, set[str]]:
    """Code → places of ``source`` that name its object: ``codes.X`` of each
    ``from paceline.ROOM import codes``.
    """
    modules = {
        alias.asname or alias.name: f"{node.module}.codes"
        for node in source.nodes()
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "codes"
    }
    compared = {
        id(node.value) for node in source.nodes() if isinstance(node, ast.Attribute) and node.attr == "name"
    }
    found: dict[str, set[str]] = defaultdict(set)
    for node in source.nodes():
        of_codes = (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        )
        if of_codes and id(node) not in compared:
            found[getattr(import_module(modules[node.value.id]), node.attr).name].add(source.at(node))
    return found


@cache
def raised() -> dict[str, set[str]]:
    """Code → all its places."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for code, places in uses(source).items():
            found[code] |= places
    return dict(found)
