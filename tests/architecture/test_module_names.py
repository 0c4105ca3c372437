"""Names of modules in docstrings and comments: each exists, or a reader is sent to a file of the past."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sources import ROOMS, ROOT, sources

from paceline.config.keys.valid_keys import known_names
from paceline.config.schema import SECTIONS

_PACKAGE = ROOT / "paceline"
_NAMED = re.compile(r"``(?:paceline\.)?([a-z_]+(?:\.[A-Za-z_]+)+)``")
_FILES = (".json", ".yaml", ".py", ".toml", ".pkl", ".jsonl", ".safetensors")


def _codes() -> set[str]:
    """Return the names of all diagnostics: they look like modules."""
    tables = [tomllib.loads(path.read_text("utf-8")) for path in _PACKAGE.rglob("codes.toml")]
    return {f"{room}.{name}" for table in tables for room, codes in table.items() for name in codes}


def is_there(name: str, package: Path = _PACKAGE) -> bool:
    """Whether ``room.module`` or ``room.module.Name`` is a folder, a file, or a word of that file."""
    folder = package
    for number, part in enumerate(parts := name.split("."), 1):
        if (folder / part).is_dir():
            folder = folder / part
            continue
        file = folder / f"{part}.py" if (folder / f"{part}.py").exists() else folder / "__init__.py"
        rest = parts[number:] if file.stem == part else parts[number - 1 :]
        text = file.read_text("utf-8") if folder != package and file.exists() else ""
        return bool(text) and all(re.search(rf"\b{word}\b", text) for word in rest)
    return True


def test_every_module_that_a_docstring_or_comment_names_exists() -> None:
    keys = {f"{section}.{name}" for section in SECTIONS for name in known_names(section)}
    codes = _codes()
    stale = [
        f"{source.path}: {name}"
        for source in sources()
        for name in _NAMED.findall(source.text)
        if name.partition(".")[0] in ROOMS
        and name not in codes
        and ".".join(name.split(".")[:2]) not in keys
        and not name.endswith(_FILES)
        and not is_there(name)
    ]
    assert not stale, stale


def test_a_module_of_the_past_is_not_there() -> None:
    assert is_there("plan.plan.KEPT_KINDS") and is_there("strategies.window")
    assert not is_there("plan.recomputation") and not is_there("plan.plan.KINDS_KEPT")
