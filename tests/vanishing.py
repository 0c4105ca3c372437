"""A folder that its owner deletes while somebody reads it, at each call of the file system in turn."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import PacelineError

CALLS = [(os, n) for n in ("stat", "lstat", "scandir", "listdir", "open", "access", "readlink", "unlink")]
CALLS += [(io, "open"), (builtins, "open")]


@contextmanager
def watched(root: Path, before: Callable[[int, str], None]) -> Iterator[None]:
    """Call ``before(number, path)`` before each call of the file system on a path below ``root``."""
    number, inside = 0, False

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            nonlocal number, inside
            path = arguments[0] if arguments and isinstance(arguments[0], (str, Path)) else None
            if path is not None and not inside and Path(path).is_relative_to(root):
                inside, number = True, number + 1
                try:
                    before(number, str(path))
                finally:
                    inside = False
            return call(*arguments, **named)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, wrapped(getattr(module, name)))
        yield


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def deleted_at_every_call(read: Callable[[Path], Any], whole: Path, place: Path, mode: str) -> list[str]:
    """Read a copy of ``whole`` in ``place``; then once for each call of the file system that this made, with
    the copy (mode ``the folder``) or the one path asked for (``the path``) deleted just before it.

    Any error but Paceline's own fails the test. Return the paths of the calls.
    """
    counted: list[str] = []
    here = place / whole.name
    shutil.copytree(whole, here, symlinks=True)
    with watched(place, lambda number, path: counted.append(path)):
        read(here)
    for point in range(1, len(counted) + 1):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, here, symlinks=True)

        def before(number: int, path: str, point: int = point) -> None:
            if number == point:
                remove(here if mode == "the folder" else Path(path))

        with watched(place, before):
            try:
                read(here)
            except PacelineError as error:
                assert error.diagnostics
            except OSError as error:
                pytest.fail(f"{mode} deleted before call {point}, {counted[point - 1]}: {error!r}")
    return counted
