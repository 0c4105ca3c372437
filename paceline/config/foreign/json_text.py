"""JSON as DeepSpeed reads it: by Hjson, so comments and a comma too many do no harm. Line numbers stay those of the file.

What else Hjson allows (words without quotes) is refused: an unquoted word swallows the rest of its line there, comma included, which
is how templates with placeholders become wrong values instead of errors.
"""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.config.yaml_tree import parse_yaml
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
_BARE = re.compile(r":\s*([A-Za-z_][A-Za-z0-9_]*)")
_PASSES = 3


def parse_json(text: str, name: str, what: str, *, lenient: bool = False) -> tuple[Any, bool]:
    """(data, whether comments or extra commas were left out). Raises ConfigError with ``file:line``: no duplicate keys, no NaN."""
    try:
        return _strict(text, name, what), False
    except ConfigError:
        plain = without_comments(text) if lenient else text
        if plain == text:
            raise
        return _strict(plain, name, what), True


def without_comments(text: str) -> str:
    """The text without ``//``, ``#`` and ``/* */`` comments and without commas before a closing bracket; as many lines as before."""
    for _ in range(_PASSES):  # a comment may stand between a comma and its bracket
        text = _TOKEN.sub(lambda found: found[0] if found[0][0] == '"' else "\n" * found[0].count("\n"), text)
    return text


def json_lines(text: str) -> dict[str, int]:
    """Line of every inner path of a JSON text (JSON is YAML but for tabs between tokens); empty when YAML cannot read it."""
    try:
        tree = parse_yaml(without_comments(text).replace("\t", " "), "")
    except ConfigError:
        return {}
    return tree.lines() if tree else {}


def _strict(text: str, name: str, what: str) -> Any:
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        duplicates.extend({key for key in keys if keys.count(key) > 1})
        return dict(items)

    def constant(word: str) -> Any:
        raise _problem("config.json_syntax", f"the {what} holds {word}, which is no JSON", name, word, "a number")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as exc:
        line = text.splitlines()[exc.lineno - 1] if text.strip() else ""
        bare = _BARE.search(line)
        if bare and bare[1] not in ("true", "false", "null"):
            raise _problem(
                "config.json_template", f"the {what} has a word without quotes where a value belongs: a placeholder of a template that was not filled in",
                f"{name}:{exc.lineno}", bare[1], "the value itself, or the word in quotes",
            ) from exc  # fmt: skip
        raise _problem(
            "config.json_syntax",
            f"the {what} is not valid JSON: {exc.msg}",
            f"{name}:{exc.lineno}",
            repr(line.strip()[:80]),
            "JSON; keys and words in double quotes",
        ) from exc
    except RecursionError as exc:
        raise _problem(
            "config.yaml_depth", f"the {what} is nested too deep", name, "", "settings need about five levels"
        ) from exc
    if duplicates:
        raise _problem(
            "config.duplicate_key",
            f"the {what} gives a key twice",
            name,
            ", ".join(sorted(duplicates)),
            "one of the two",
        )
    return data


def _problem(code: str, what: str, where: str, found: str, hint: str) -> ConfigError:
    return ConfigError(Diagnostic(code, what, where=where, found=found, hint=hint))
