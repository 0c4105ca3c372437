"""Finds and reads the files that a config names: DeepSpeed JSON, FSDP JSON, Accelerate YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.config.foreign import accelerate, deepspeed, fsdp
from paceline.config.foreign.layer import Document, Foreign
from paceline.config.layers import Merged
from paceline.config.reading import read_text
from paceline.config.source import Entry
from paceline.config.yaml_tree import parse_yaml
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError


def foreign_layer(upper: Merged, folder: Path) -> Foreign:
    """The lowest layer, from the files that the upper layers name; relative paths are looked up beside the YAML, then here."""
    found = Foreign()
    readers: dict[str, tuple[str, Callable[[Document, Foreign], None]]] = {
        "training.accelerate_config": ("Accelerate config", accelerate.read),
        "training.fsdp_config": ("FSDP config", fsdp.read),
        "training.deepspeed": ("DeepSpeed config", deepspeed.read),
    }
    for path, (what, read) in readers.items():
        entry = upper.winners.get(path)
        if entry is None or not isinstance(entry.value, (str, dict)) or entry.value in ("", {}):
            continue
        try:
            document = _document(entry, what, folder, found)
        except ConfigError as exc:
            found.problems += exc.diagnostics
            continue
        if document is None:
            continue
        if path != "training.accelerate_config":
            found.contents[path] = document.data
        read(document, found)
    return found


def find_file(name: str, folder: Path) -> Path | None:
    """The file beside the YAML, else from the current directory; None if neither is there."""
    given = Path(name).expanduser()
    tried = [given] if given.is_absolute() else [folder / given, given]
    return next((path for path in tried if path.exists()), None)


def _document(entry: Entry, what: str, folder: Path, found: Foreign) -> Document | None:
    if isinstance(entry.value, dict):
        return Document(entry.value, entry.source.file or entry.source.place(), dict(entry.lines), entry.source.line)
    file = find_file(entry.value, folder)
    if file is None:
        places = f"{folder / entry.value}" + ("" if str(folder) in (".", "") else f" and {entry.value}")
        found.notes.append(
            Diagnostic(
                "config.foreign_missing", f"the {what} is not there, so none of its settings are known", where=entry.source.place(),
                found=f"no file {places}", hint="a path beside the YAML or from the current directory; a start is refused until it is there", severity=Severity.WARNING,
            )
        )  # fmt: skip
        return None
    name = str(file)
    text = read_text(name, f"the {what}")
    if file.suffix in (".yaml", ".yml"):
        tree = parse_yaml(text, name)
        data, lines = (tree.data(), tree.lines()) if tree else (None, {})
    else:
        data, lines = parse_json(text, name, what), _lines(text)
    if not isinstance(data, dict):
        raise ConfigError(
            Diagnostic("config.not_a_mapping", f"the {what} must hold keys and values", where=name, hint="{ … }")
        )
    return Document(data, name, lines)


def parse_json(text: str, name: str, what: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN. Raises ConfigError with ``file:line``."""
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        duplicates.extend({key for key in keys if keys.count(key) > 1})
        return dict(items)

    def constant(word: str) -> Any:
        raise ConfigError(
            Diagnostic(
                "config.json_syntax",
                f"the {what} holds {word}, which is no JSON",
                where=name,
                found=word,
                hint="a number",
            )
        )

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as exc:
        line = text.splitlines()[exc.lineno - 1] if text.strip() else ""
        raise ConfigError(
            Diagnostic(
                "config.json_syntax",
                f"the {what} is not valid JSON: {exc.msg}",
                where=f"{name}:{exc.lineno}",
                found=repr(line.strip()[:80]),
                hint="plain JSON: no comments, no trailing commas",
            )
        ) from exc
    except RecursionError as exc:
        raise ConfigError(
            Diagnostic(
                "config.yaml_depth",
                f"the {what} is nested too deep",
                where=name,
                hint="settings need about five levels",
            )
        ) from exc
    if duplicates:
        raise ConfigError(
            Diagnostic(
                "config.duplicate_key",
                f"the {what} gives a key twice",
                where=name,
                found=", ".join(sorted(duplicates)),
                hint="one of the two",
            )
        )
    return data


def _lines(text: str) -> dict[str, int]:
    """Line of every inner path of a JSON text (JSON is YAML but for tabs between tokens); empty when YAML cannot read it."""
    try:
        tree = parse_yaml(text.replace("\t", " "), "")
    except ConfigError:
        return {}
    return tree.lines() if tree else {}
