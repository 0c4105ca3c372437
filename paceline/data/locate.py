"""Locate a data set: a file, a folder of files, a ``datasets`` directory, or a name on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import no_file
from paceline.data import codes
from paceline.rules import codes as rules_codes

SUFFIXES = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".txt": "txt",
}
SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
}
SAVED = ("dataset_dict.json", "state.json")  # files that mark a folder of ``datasets.save_to_disk``
_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:function
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


@dataclass(frozen=True)
class Located:
    """Where a data set is.

    ``kind``: ``files`` (read by ``readers``), ``saved`` (a ``datasets.save_to_disk`` directory), ``hub``, or
    ``own`` (``module:function``);
    ``note``: which files were left out.
    """

    kind: str
    files: tuple[Path, ...] = ()
    folder: Path | None = None
    hub: str = ""
    hub_config: str | None = None
    own: str = ""
    note: str = ""


def locate(path: str, split: str, name: str | None = None) -> Located:
    """Locate a data set. Raises DataError if nothing is there, or nothing that can be read."""
    local = Path(path).expanduser()
    try:
        exists = local.exists()
    except OSError as exc:
        raise DataError(codes.DATA_UNREADABLE("the data cannot be inspected", path, str(exc))) from exc
    if exists:
        return _folder(local, split) if local.is_dir() else Located("files", (_known(local),))
    if _OWN.fullmatch(path):
        return Located("own", own=path)
    if _looks_local(path):
        raise DataError(_not_there(local, path))
    if _HUB_NAME.match(path):
        return Located("hub", hub=path, hub_config=name)
    raise DataError(_not_there(local, path))


def is_own(path: str) -> bool:
    """Whether a path is no file's, but the ``module:function`` that gives rows."""
    return _OWN.fullmatch(path) is not None and not Path(path).exists()


def _looks_local(path: str) -> bool:
    return (
        path.startswith(("/", ".", "~"))
        or path.count("/") > 1
        or Path(path).suffix.lower() in SUFFIXES
        or "\\" in path
    )


def _not_there(local: Path, path: str) -> Diagnostic:
    beside = (
        sorted(p.name for p in local.parent.iterdir() if p.suffix in SUFFIXES)[:8]
        if local.parent.is_dir()
        else []
    )
    found = (
        f"in {local.parent}: {', '.join(beside) or 'no data files'}"
        if local.parent.is_dir()
        else f"there is no folder {local.parent}"
    )
    return rules_codes.DATA_MISSING(
        "there is no such file or folder",
        path,
        found,
        "give the path of a file or a folder, or a name on the hub (owner/name)",
    )


def _known(file: Path) -> Path:
    if kind := no_file(file):
        raise DataError(
            codes.DATA_UNREADABLE(
                f"this is {kind}, not a file", str(file), file.name, "give a file with rows"
            )
        )
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(
            codes.DATA_UNKNOWN_SUFFIX(
                f"files that end in '{file.suffix}' cannot be read",
                str(file),
                file.name,
                f"use a suffix that names the type: one of {', '.join(SUFFIXES)} (JSON lines"
                " .jsonl, plain text .txt)",
            )
        )
    return file


def _folder(folder: Path, split: str) -> Located:
    # A directory of the datasets library, or else data files in any subfolder that is not hidden.
    if any((folder / name).is_file() for name in SAVED):
        return Located("saved", folder=folder)
    inside = [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    ]
    readable = [
        p
        for p in inside
        if p.suffix.lower() in SUFFIXES and p.suffix.lower() != ".txt" and p.name != "dataset_info.json"
    ]
    if not readable:
        # Text files count only without other data files: they are often licences and notes.
        readable = [p for p in inside if p.suffix.lower() == ".txt"]
    if not readable:
        names = ", ".join(p.name for p in inside[:8]) or "nothing"
        raise DataError(
            codes.DATA_EMPTY_FOLDER(
                "the folder contains no data files",
                str(folder),
                names,
                f"files that end in {', '.join(SUFFIXES)}",
            )
        )
    # Keep files of the wanted split and those that name no split.
    wanted = SPLITS.get(split.lower(), split.lower())
    others = [p for p in readable if _split_of(p, folder) not in (None, wanted)]
    chosen = [p for p in readable if p not in others]
    if not chosen:
        hint = f"split: {_split_of(readable[0], folder)} (next to path:)"
        raise DataError(
            codes.DATA_SPLIT_MISSING(
                f"no file of the folder belongs to the split '{split}'",
                str(folder),
                ", ".join(p.name for p in readable[:8]),
                hint,
            )
        )
    # Say which files are not read.
    left = [p for p in inside if p not in chosen]
    note = (
        f"skipped (another split, or not a data file): {', '.join(p.name for p in left[:8])}"
        + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        if left
        else ""
    )
    return Located("files", tuple(chosen), note=note)


def _split_of(file: Path, root: Path) -> str | None:
    """Return the split in a file's or its folder's name: ``gsm8k_test.jsonl`` → test.

    Prevents training on the test file.
    """
    for part in reversed(file.relative_to(root).with_suffix("").parts):
        for word in re.split(r"[-_. ]", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return None
