"""Python code shipped with a model (``trust_remote_code``): find its files, and check that they are
pinned."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.core import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, open_file, read_text
from paceline.core.json_types import Json

COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# A model has tens; a home folder given by mistake has more
_MOST_FILES = 5000
_SHOWN = 8


@dataclass(frozen=True)
class RemoteCode:
    """The Python code of a model folder.

    ``digest``: sha256 over all of it, hexadecimal; ``files``: names with modification times, newest first;
    ``elsewhere``: other repositories that ``auto_map`` loads code from.
    """

    digest: str
    files: tuple[str, ...]
    elsewhere: tuple[str, ...]


def unpinned(name: str, revision: str | None) -> Diagnostic | None:
    """Return why the code of model ``name`` may not run with ``revision`` as its pin; None when it may.

    A hub name is pinned by its commit, a local folder by the digest of its code. A commit does not determine
    the files on this disk.
    """
    # A hub name: pinned by a commit
    folder = Path(name).expanduser()
    if not name or not folder.is_dir():
        if COMMIT.fullmatch(revision or ""):
            return None
        return codes.SEC_TRUST_REMOTE_CODE(
            "code from the hub runs only from a pinned commit, because a branch can change",
            "model.revision",
            f"revision: {revision or 'none'}",
            "set revision to the 40-digit commit that you have reviewed, or trust_remote_code: false",
        )
    # A folder: pinned by the digest of its code, all of which must be inside it
    code = read_code(folder)
    if code.elsewhere:
        return codes.SEC_TRUST_REMOTE_CODE(
            "the code of this folder refers to other repositories, which `revision` does not pin",
            "model.revision",
            f"auto_map: {', '.join(code.elsewhere)}",
            "use a folder that contains all of its code (auto_map without --), or set"
            " trust_remote_code: false",
        )
    if not code.files or revision == code.digest:
        return None
    listed = ", ".join(code.files[:_SHOWN]) + (
        f" and {len(code.files) - _SHOWN} more" if len(code.files) > _SHOWN else ""
    )
    changed = bool(_DIGEST.fullmatch(revision or ""))
    other, unread = (
        "has changed since it was reviewed",
        "runs only after review: its digest must be pinned",
    )
    return codes.SEC_TRUST_REMOTE_CODE(
        f"the code in {name} {other if changed else unread}",
        "model.revision",
        f"revision: {revision or 'none'}; the folder contains {listed}",
        f"revision: {code.digest}  (after you have reviewed these files), or trust_remote_code: false",
    )


def check_code(name: str, revision: str | None) -> None:
    """Raise ConfigError unless ``revision`` pins the code of model ``name``.

    Call it again just before loading it.
    """
    wrong = unpinned(name, revision)
    if wrong is not None:
        raise ConfigError(wrong)


def read_code(folder: Path) -> RemoteCode:
    """Hash the code that Transformers may run from ``folder``: Python files, and JSON files' ``auto_map``."""
    parts: list[tuple[str, str]] = []
    changes: list[tuple[float, str]] = []
    elsewhere: set[str] = set()
    for path in _python_files(folder):
        name = path.relative_to(folder).as_posix()
        with open_file(path) as file:
            parts.append((name, hashlib.sha256(file.read()).hexdigest()))
        changes.append((path.stat().st_mtime, name))
    for path in sorted(folder.glob("*.json")):
        maps = list(_auto_maps(path))
        if maps:
            parts.append((path.name, json.dumps(maps, sort_keys=True)))
            elsewhere |= {text.partition("--")[0] for item in maps for text in _texts(item) if "--" in text}
    content = json.dumps(sorted(parts)).encode()
    newest = [
        f"{name} (changed {time.strftime('%Y-%m-%d %H:%M', time.localtime(when))})"
        for when, name in sorted(changes, reverse=True)
    ]
    return RemoteCode(hashlib.sha256(content).hexdigest(), tuple(newest), tuple(sorted(elsewhere)))


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield all Python files below ``folder``, following links, visiting each folder once."""
    seen: set[str] = set()
    count = 0
    for parent, inner, names in os.walk(folder, followlinks=True):
        # In place, so that os.walk follows; sorted, so that the digest is the same everywhere
        inner[:] = sorted(n for n in inner if n != "__pycache__")
        real = os.path.realpath(parent)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            if name.endswith(".py"):
                count += 1
                if count > _MOST_FILES:
                    raise OSError(
                        f"{folder} contains more than {_MOST_FILES} Python files, so it is not a model folder"
                    )
                yield Path(parent) / name


def _auto_maps(path: Path) -> Iterator[Json]:
    """Yield every non-empty ``auto_map`` in a JSON file, at any depth; nothing when it cannot be parsed."""
    try:
        todo: list[Json] = [json.loads(read_text(path))] if path.stat().st_size <= MAX_CONFIG_BYTES else []
    except (OSError, ValueError, RecursionError):
        return  # not a model's config
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if value.get("auto_map"):
                yield value["auto_map"]
            todo += list(value.values())
        elif isinstance(value, list):
            todo += value


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
