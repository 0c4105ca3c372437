"""The files of a folder that a training may use, with their texts; the others with the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.yaml_text.read_file import MAX_BYTES
from paceline.core.files import no_file, open_file

#: folders that hold no file of a person's own
_LEFT_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", ".tox", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
        *("__pycache__", ".ipynb_checkpoints", "node_modules", "site-packages", "wandb", "mlruns"),
    )
)
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
_CHECKPOINT = ("trainer_state.json", "manifest.json")
_MOST_ENTRIES, _MOST_TEXT, _DEEPEST = 50_000, 64 << 20, 24
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh")
_CONFIGS = (".yaml", ".yml", ".json")
_MAKEFILE = re.compile(r"(GNU)?[Mm]akefile(\..+)?|.*\.mk")
_DOCKERFILE = re.compile(r"(?i)(Docker|Container)file(\..+)?|.*\.dockerfile")
_SHELL = re.compile(rb"#![^\n]*\b(ba|da|z|k)?sh\b")
_FIRST = 64  # bytes that tell a script without a suffix


@dataclass(frozen=True)
class FolderFile:
    """A file by its path in the folder; ``kind``: script, makefile, dockerfile, python, or config."""

    path: str
    kind: str
    text: str


@dataclass
class FolderFiles:
    """A folder's files. ``skipped``: path → why it was not read; ``others``: the number of unrelated
    files."""

    root: Path
    files: dict[str, FolderFile] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    others: int = 0

    def of(self, kind: str) -> list[FolderFile]:
        """Return the files of a kind in order of their paths."""
        return [file for _, file in sorted(self.files.items()) if file.kind == kind]


def list_folder(path: Path) -> FolderFiles:
    """Read a folder, or a single file. Follows no link out of the folder."""
    alone = not path.is_dir()
    listed = FolderFiles(path.parent if alone else path)
    budget = _MOST_TEXT
    for file in [path] if alone else _walk(listed):
        name = str(file.relative_to(listed.root))
        kind = _kind(file)
        why = _not_read(file, listed.root) if kind else ""
        if why or not kind:
            listed.skipped |= {name: why} if why else {}
            listed.others += not kind
            continue
        text = _text(file)
        if text is None or len(text) > budget:
            listed.skipped[name] = "no text in UTF-8" if text is None else "more text than is read at once"
            continue
        budget -= len(text)
        listed.files[name] = FolderFile(name, kind, text)
    return listed


def _walk(listed: FolderFiles) -> Iterator[Path]:
    """Yield the files of a folder in order, and note the folders that are not entered."""
    stack, entries = [listed.root], 0
    while stack:
        folder = stack.pop()
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            listed.skipped[_shown(folder, listed)] = error.strerror or str(error)
            continue
        folders = []
        for path in inside:
            entries += 1
            if entries > _MOST_ENTRIES:
                listed.skipped[_shown(path, listed)] = (
                    f"and what follows: more than {_MOST_ENTRIES:,} entries"
                )
                return
            if not path.is_dir():
                yield path
            elif why := _not_entered(path, listed.root):
                listed.skipped[_shown(path, listed)] = why
            else:
                folders.append(path)
        stack += reversed(folders)


def _shown(path: Path, listed: FolderFiles) -> str:
    return f"{path.relative_to(listed.root)}{'/' * path.is_dir()}"


def _not_entered(folder: Path, root: Path) -> str:
    """Return why a folder is not entered; or empty."""
    if folder.is_symlink():
        return "a link to a folder"
    if folder.name in _LEFT_OUT:
        return "no files of a job"
    if any((folder / name).exists() for name in _ENVIRONMENT):
        return "an environment of Python"
    if any((folder / name).exists() for name in _CHECKPOINT):
        return "a checkpoint or a run"
    return "too deep" if len(folder.relative_to(root).parts) > _DEEPEST else ""


def _kind(file: Path) -> str:
    """Return what a file may be by its name, or by the first line of one without a suffix; else empty."""
    name = file.name
    if _MAKEFILE.fullmatch(name):
        return "makefile"
    if _DOCKERFILE.fullmatch(name):
        return "dockerfile"
    if file.suffix in _SCRIPTS:
        return "script"
    if file.suffix in _CONFIGS:
        return "config"
    if file.suffix == ".py":
        return "python"
    if file.suffix or no_file(file) or not os.access(file, os.R_OK):
        return ""
    try:
        with open_file(file) as stream:
            return "script" if _SHELL.match(stream.read(_FIRST)) else ""
    except OSError:
        return ""


def _not_read(file: Path, root: Path) -> str:
    """Return why a possibly related file is not read; or empty."""
    if special := no_file(file):
        return f"{special}, not a file"
    try:
        if file.is_symlink() and not file.resolve().is_relative_to(root.resolve()):
            return "a link that leaves the folder"
        size = file.stat().st_size
    except (OSError, RuntimeError) as error:
        return getattr(error, "strerror", None) or "a link in a circle"
    return "larger than 1 MiB" if size > MAX_BYTES else ""


def _text(file: Path) -> str | None:
    """Return a file's text; None for one that is no text."""
    try:
        with open_file(file) as stream:
            raw = stream.read(MAX_BYTES + 1)
        return None if b"\0" in raw else raw.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return None
