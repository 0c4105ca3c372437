"""``launched-by.json``: what has started a run last, and ``stop-request.json``: that it is to stop for good.

Both are small files in the run's directory, so that ``paceline status``, ``stop`` and ``resume`` find the
run's processes wherever the directory can be seen.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import MAX_JSON_BYTES, open_run_file
from paceline.core.json_types import NO_UTF8, JsonObject, as_object, parse_json
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.launch import codes
from paceline.launch.processes import started_at

#: Set by the files of ``paceline launch``: the scheduler's name, its job, and the folder of the files
SCHEDULER, JOB, FILES = "PACELINE_SCHEDULER", "PACELINE_JOB", "PACELINE_JOB_FOLDER"
LOCAL = "local"
_LOOK_SECONDS = 1.0  # between looks at a stop request, on a disk that may be far away


@dataclass(frozen=True)
class LaunchedBy:
    """What has started a run.

    - ``scheduler``: its name in ``schedulers.job``; ``local`` for a process that no scheduler knows
    - ``job``: the scheduler's own name of the job; empty for ``local``
    - ``host``, ``pid``, ``began``: of the first node's launcher, or of rank 0 where another program launches
    - ``folder``: the working directory; ``run``: the run's directory
    - ``files``: the folder that ``paceline launch`` has written, if it has
    """

    scheduler: str
    job: str
    host: str
    pid: int
    began: int
    folder: str
    run: str
    files: str = ""

    @staticmethod
    def here(environ: Mapping[str, str], run: RunDir) -> LaunchedBy:
        """Return what has started this process, by its environment."""
        scheduler, job = environ.get(SCHEDULER, ""), environ.get(JOB, "")
        slurm = environ.get("SLURM_JOB_ID", "")
        if slurm and scheduler in ("", "slurm"):
            scheduler, job = "slurm", slurm
        return LaunchedBy(
            scheduler or LOCAL,
            job,
            socket.gethostname(),
            os.getpid(),
            started_at(os.getpid()),
            os.getcwd(),
            str(run.root),
            environ.get(FILES, ""),
        )

    @staticmethod
    def submitted(scheduler: str, job: str, run: str, files: Path) -> LaunchedBy:
        """Return what a machine that submits a job knows of it: no process is known before it starts."""
        return LaunchedBy(scheduler, job, socket.gethostname(), -1, -1, os.getcwd(), run, str(files))

    def enter_folder(self) -> None:
        """Make the folder of the start the working directory. Raises ConfigError where it is gone."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            reason = f"its folder {self.folder}: {error.strerror}"
            raise ConfigError(codes.LAUNCH_RECORD_DAMAGED("launched-by.json", reason)) from error

    @property
    def is_elsewhere(self) -> bool:
        """Whether its process was started on another machine."""
        return self.host != socket.gethostname()

    @property
    def is_alive_here(self) -> bool:
        """Whether its process lives on this machine."""
        return self.host == socket.gethostname() and started_at(self.pid) == self.began != -1


def write_launch(run: RunDir, launched: LaunchedBy) -> None:
    """Record what has started the run; an earlier request to stop is over. Raises OSError."""
    with written_into(run.root):
        _publish(run, run.launched_by.name, asdict(launched))
        run.stop_request.unlink(missing_ok=True)


def read_launch(run: RunDir) -> LaunchedBy | None:
    """Return what has started the run; None if nothing is recorded.

    Raises ConfigError for a damaged record, and for one that another user has written: it says which job and
    files to act on.
    """
    try:
        return _parsed(read_trusted(run.launched_by), run)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise ConfigError(codes.LAUNCH_RECORD_DAMAGED(str(run.launched_by), reason)) from error


def _is_trusted(owner: int) -> bool:
    """Whether a user's files may say what this one runs."""
    return owner in (os.geteuid(), 0)


def read_trusted(path: Path) -> str:
    """Return the text of a file that says what to run. Raises ConfigError for another user's, and OSError.

    Owner and text are of one open file: its name may be given to another in between.
    """
    with open_run_file(path) as file:
        _check(path, os.fstat(file.fileno()).st_uid)
        return file.read(MAX_JSON_BYTES).decode("utf-8", "replace")


def check_owner(path: Path) -> None:
    """Raise ConfigError for a file of another user that says what to run. Raises OSError where it is gone."""
    _check(path, path.stat().st_uid)


def _check(path: Path, owner: int) -> None:
    if not _is_trusted(owner):
        raise ConfigError(codes.LAUNCH_RECORD_OWNER(str(path), f"user {owner}"))


def _parsed(text: str, run: RunDir) -> LaunchedBy:
    """Return the record of a text. Raises KeyError or ValueError."""
    data = as_object(parse_json(text.encode()))
    words = {name: str(data[name]) for name in ("scheduler", "job", "host", "folder", "run", "files")}
    if any("\0" in word for word in words.values()):
        raise ValueError("a value has a NUL character")
    pid = int(str(data["pid"]))
    # A run's directory may have been moved; the record of a job's files lies elsewhere
    words["run"] = str(run.root) if pid > 0 else words["run"]
    return LaunchedBy(**words, pid=pid, began=int(str(data["began"])))


def job_folder(run: Path) -> RunDir:
    """Return the folder of the files that ``paceline launch`` writes for a run, unless told otherwise."""
    return RunDir.at(Path(f"{os.path.abspath(run)}-launch"))


def read_newest_launch(run: Path) -> LaunchedBy | None:
    """Return what has started a run, or is to start it: its own record or that of the job's files, the newer.

    The run's directory may be on other machines, or not there yet. Raises ConfigError as ``read_launch``.
    """
    own, files = RunDir.at(run), job_folder(run)
    if _written_at(own) >= _written_at(files):
        return read_launch(own)
    return read_launch(files)


def _written_at(folder: RunDir) -> int:
    """Return when a record was written, in nanoseconds; -1 without one, 0 where it is another user's."""
    with suppress(OSError):
        info = folder.launched_by.stat()
        return info.st_mtime_ns if _is_trusted(info.st_uid) else 0
    return -1


def request_stop(run: RunDir, job: str) -> None:
    """Record that the run is to stop and stay stopped. ``job``: as in ``LaunchedBy``. Raises OSError."""
    with written_into(run.root):
        _publish(run, run.stop_request.name, {"job": job, "host": socket.gethostname(), "at": time.time()})


class StopRequests:
    """Whether a stop was requested since this launcher has started; looks at most once a second."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._before, self._looked = run, _identity(run), time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return _identity(self._run) not in (None, self._before)


def _identity(run: RunDir) -> tuple[int, int] | None:
    with suppress(OSError):
        info = run.stop_request.stat()
        return info.st_ino, info.st_mtime_ns
    return None


def _publish(run: RunDir, name: str, data: JsonObject) -> None:
    path = run.root / name
    staged = path.with_name(f".{name}.{os.getpid()}")
    try:
        staged.write_bytes((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", NO_UTF8))
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
