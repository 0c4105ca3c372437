"""Pointers of Git LFS: three lines of text in place of a file that was not downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paceline.core import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.files import open_file

_BEGIN, _MAX_BYTES = b"version https://git-lfs", 1024


def pointers(files: Iterable[Path], where: str = "") -> Diagnostic | None:
    """Return the error about those of ``files`` that are pointers, at ``where`` (the first of them)."""
    found = [str(file) for file in files if _is_pointer(file)]
    return codes.CORE_LFS_POINTER(where or found[0], ", ".join(found[:4])) if found else None


def pointers_in(folder: Path, where: str) -> Diagnostic | None:
    """Return the error about the pointers in a folder."""
    try:
        return pointers(sorted(folder.iterdir()), where)
    except OSError:
        return None  # reported by whoever reads the folder


def _is_pointer(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return False
        with open_file(file) as stream:
            return stream.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False
