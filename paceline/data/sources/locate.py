"""Locate a data set: a file, a folder of files, a ``datasets`` directory, or a name on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import no_file
from paceline.data import codes
from paceline.data.sources.file_kinds import kind_of
from paceline.data.sources.split_files import readable, shortened, split_files
from paceline.rules import codes as rules_codes

SAVED = ("dataset_dict.json", "state.json")  # files that mark a folder of ``datasets.save_to_disk``
_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:function
# Name or owner/name
_HUB_FILE = re.compile(r"hf://datasets/[\w.-]+/[\w.-]+/\S+$")
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


@dataclass(frozen=True)
class Located:
    """Where a data set is.

    ``kind``: ``files`` (read by ``readers``), ``saved`` (a ``datasets.save_to_disk`` directory), ``hub``, or
    ``own`` (``module:function``);
    ``note``: the files that were left out.
    """

    kind: str
    files: tuple[Path, ...] = ()
    folder: Path | None = None
    hub: str = ""
    hub_config: str | None = None
    own: str = ""
    note: str = ""


def locate(path: str, split: str, name: str | None = None) -> Located:
    """Locate a data set. Raises DataError if there are no files, or none that can be read."""
    local = Path(path).expanduser()
    try:
        exists = local.exists()
    except OSError as exc:
        raise DataError(codes.DATA_UNREADABLE("the data cannot be inspected", path, str(exc))) from exc
    if exists and local.is_dir():
        return _folder(local, split, name)
    if exists or _OWN.fullmatch(path):
        _check_whole(path, split, name, "a file" if exists else "a function")
        return Located("files", (_readable(local),)) if exists else Located("own", own=path)
    if _HUB_FILE.match(path):
        _check_whole(path, split, name, "a file")
        return Located("hub", hub=path)
    if _looks_local(path) or not _HUB_NAME.match(path):
        raise DataError(_not_there(local, path))
    return Located("hub", hub=path, hub_config=name)


def is_own(path: str) -> bool:
    """Whether a path is not a file but a ``module:function`` that returns rows."""
    return _OWN.fullmatch(path) is not None and not Path(path).exists()


def _looks_local(path: str) -> bool:
    return (
        path.startswith(("/", ".", "~"))
        or path.count("/") > 1
        or kind_of(Path(path)) is not None
        or "\\" in path
    )


def _not_there(local: Path, path: str) -> Diagnostic:
    beside = sorted(p.name for p in local.parent.iterdir() if kind_of(p))[:8] if local.parent.is_dir() else []
    return rules_codes.DATA_MISSING(
        "there is no such file or folder",
        path,
        f"in {local.parent}: {', '.join(beside) or 'no data files'}"
        if local.parent.is_dir()
        else f"there is no folder {local.parent}",
        "give the path of a file or a folder, or a name on the hub (owner/name)",
    )


def _readable(file: Path) -> Path:
    if kind := no_file(file):
        raise DataError(
            codes.DATA_UNREADABLE(
                f"this is {kind}, not a file", str(file), file.name, "give a file with rows"
            )
        )
    if kind_of(file) is None:
        raise DataError(
            codes.DATA_UNKNOWN_SUFFIX(
                str(file), file.name, suffixes="".join(file.suffixes[-2:]), readable=readable()
            )
        )
    return file


def _folder(folder: Path, split: str, name: str | None) -> Located:
    """Return a directory of the datasets library, or else the data files of a split."""
    if any((folder / saved).is_file() for saved in SAVED):
        if name is not None:
            raise _no_config(folder, name, "a folder of save_to_disk")
        return Located("saved", folder=folder)
    files, left = split_files(folder, split, name)
    note = f"skipped (another split, or not a data file): {shortened(left)}" if left else ""
    return Located("files", tuple(folder / path for path in files), note=note)


def _check_whole(path: str, split: str, name: str | None, kind: str) -> None:
    """Refuse ``name:``, and any ``split:`` but ``train``, for a source with a single split.

    Raises DataError.
    """
    if name is not None:
        raise _no_config(path, name, kind)
    if split != "train":
        raise DataError(
            codes.DATA_SPLIT_MISSING(
                f"{kind} has the split train alone",
                path,
                f"split: {split}",
                "remove split:; max_rows: N takes the first N rows, data.validation_split holds rows out",
            )
        )


def _no_config(path: Path | str, name: str, kind: str) -> DataError:
    return DataError(
        codes.DATA_CONFIG_NAME(
            f"{kind} has no configurations",
            str(path),
            f"name: {name}",
            "remove name: (it chooses a configuration of a folder with a README, or of a hub data set)",
        )
    )
