"""Dump all threads' stacks when native code crashes, and on request while a process hangs (kill -USR1 PID).

Crashes: SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

ON_REQUEST = getattr(signal, "SIGUSR1", None)  # missing on Windows


def stacks_to(file: int | Path) -> None:
    """Write stacks to ``file`` from now on: a file descriptor, or a path that is appended to. Raises OSError.

    A path is opened here and stays open until the process ends: a crash may come after everything else is
    closed.
    """
    fd = (
        file
        if isinstance(file, int)
        else os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    )
    faulthandler.enable(fd, all_threads=True)
    if ON_REQUEST is not None:
        faulthandler.register(ON_REQUEST, fd, all_threads=True, chain=False)
