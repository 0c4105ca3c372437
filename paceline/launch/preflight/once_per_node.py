"""One of several ranks of a node that start together runs the checks; the others reuse its findings."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import listed
from paceline.launch.processes import started_at
from paceline.runlog.redact import Redactor

#: Longer than any check (``child_checks.SECONDS``, the sandbox's, a plan); after that a rank runs its own.
WAIT_SECONDS = 400.0
_KEPT_SECONDS = 86400.0  # records of starts older than a day are removed
STARTING_SECONDS = 60.0  # cap on this process's age: findings from before that may be out of date


def once_per_node(
    folder: Path, subject: str, look: Callable[[], Sequence[Diagnostic]]
) -> tuple[Diagnostic, ...]:
    """Return the findings of ``look`` about ``subject``.

    Of several processes that start together only one runs it.

    Findings are reused if they were made after this process was started, so they are as recent as its own.
    The processes need not know each other. If a process dies, its lock is released and the next one runs the
    checks. An error that was fixed before this start is not reported again. ``folder`` may be on a disk
    shared with other machines.
    """
    name = hashlib.sha256(f"{socket.gethostname()}\n{os.getuid()}\n{subject}".encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    record, lock = folder / f"{name}.json", FileLock(str(folder / f"{name}.lock"), timeout=WAIT_SECONDS)
    try:
        with lock:
            findings = _recorded(record)
            return _look_and_record(record, look) if findings is None else findings
    except Timeout:  # the lock's holder hangs
        return tuple(look())


def _recorded(record: Path) -> tuple[Diagnostic, ...] | None:
    """Return the findings of another process of this start; None if there are none."""
    try:
        with record.open("rb") as file:
            is_ours = os.fstat(file.fileno()).st_uid == os.getuid()
            content = json.loads(file.read())
        if not is_ours or content["began"] < started():
            return None
        return tuple(Diagnostic.from_json(item) for item in content["found"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or its writer died halfway
        return None


def _look_and_record(record: Path, look: Callable[[], Sequence[Diagnostic]]) -> tuple[Diagnostic, ...]:
    remove_old(record.parent)
    redact, began = Redactor.of(os.environ).diagnostic, time.time()
    findings = tuple(look())
    text = json.dumps({"began": began, "found": [redact(finding).to_json() for finding in findings]})
    with open(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return findings


def remove_old(folder: Path) -> None:
    """Remove the records of starts that are long over."""
    for old in listed(folder):
        with suppress(FileNotFoundError):  # another start removes them, too
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink()


def started() -> float:
    """Return when this process was started (seconds since 1970), from ``/proc``.

    The current time if there is no ``/proc``.
    """
    now, ticks = time.time(), started_at(os.getpid())
    if ticks < 0:
        return now
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now - min(max(0.0, age), STARTING_SECONDS)
