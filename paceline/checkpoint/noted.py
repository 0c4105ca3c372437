"""Housekeeping after a save: what fails there is a note, since the checkpoint is published. No torch."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from paceline.checkpoint import codes
from paceline.core.diagnostics import Diagnostic, Severity


class Noted:
    """A context that turns an OSError into a note: the checkpoint is published, only housekeeping failed."""

    def __init__(self, notes: list[Diagnostic], where: Path) -> None:
        self._notes = notes
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(exc, OSError):
            return False
        what = "the checkpoint is published, but a later operation failed"
        self._notes.append(housekeeping_failed(what, self._where, exc))
        return True


def housekeeping_failed(what: str, where: Path, error: OSError) -> Diagnostic:
    """Return the warning that something beside a sound checkpoint could not be done."""
    return codes.CHECKPOINT_HOUSEKEEPING(what, str(where), str(error), severity=Severity.WARNING)
