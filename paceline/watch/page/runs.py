"""All runs of a folder: found again every few seconds, each with its view once somebody opens it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from paceline.core.json_types import Json
from paceline.core.rundir import RunDir
from paceline.watch.page.folder import find_runs
from paceline.watch.page.glance import glance
from paceline.watch.page.view import RunView

_LOOK_SECONDS = 3.0  # between two searches of the folder


class Runs:
    """The runs at ``root``; their indexes lie in ``cache``, one folder a run, locked while in use."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache = root, cache
        self._lock = threading.Lock()
        self._found: dict[str, RunDir] = {}
        self._looked = -_LOOK_SECONDS
        self._views: dict[str, RunView] = {}
        self._claims: list[IO[str]] = []
        self._own = contextlib.ExitStack()

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for view in self._views.values():
            view.close()
        for claim in self._claims:
            claim.close()
        self._own.close()

    def found(self) -> dict[str, RunDir]:
        """Return the runs by id; those that were deleted since stay."""
        with self._lock:
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._found = {**self._found, **find_runs(self.root)}
                self._looked = time.monotonic()
            return dict(self._found)

    def rows(self) -> list[Json]:
        """Return a row a run, the most recently changed first."""
        rows = [{**glance(run), "name": self._name(run)} for run in self.found().values()]
        return [*sorted(rows, key=lambda row: (row.get("live") is not True, -_float(row.get("changed"))))]

    def _name(self, run: RunDir) -> str:
        path = os.path.relpath(run.root, self.root.expanduser().absolute())
        return run.root.name if path == "." else path

    def view(self, run_id: str) -> RunView | None:
        """Return the view of a run; None for an id that is not known."""
        run = self.found().get(run_id)
        if run is None:
            return None
        with self._lock:
            if run_id not in self._views:
                self._views[run_id] = RunView(run, self._claimed(run_id))
            return self._views[run_id]

    def _claimed(self, run_id: str) -> Path:
        """Return the run's folder of the cache, or a temporary one where another page uses that."""
        folder = self.cache / run_id
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            claim = (folder / "lock").open("a")
        except OSError:  # a home that cannot be written
            return Path(self._own.enter_context(tempfile.TemporaryDirectory(prefix="paceline-page-")))
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.close()
            return Path(self._own.enter_context(tempfile.TemporaryDirectory(prefix="paceline-page-")))
        self._claims.append(claim)
        return folder


def _float(value: Json) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
