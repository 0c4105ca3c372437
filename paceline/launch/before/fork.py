"""A check in a fork of this process: what is imported here is not imported again.

Like any child it has a time limit, a session of its own, and dies with its parent. But its interpreter is not
fresh as the ranks' will be: what imports torch or the user's code is tried in one that is (``beforehand``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from paceline.launch.outlet import own_program
from paceline.launch.processes import die_with_parent, send_group

_THREADS = Path("/proc/self/task")  # libraries' too


def can_fork() -> bool:
    """Whether this process runs a program of ours in a single thread: a fork has no other threads.

    Nor may the hub's library be imported: it asks whether it is offline once, when it is.
    """
    alone = _THREADS.is_dir() and len(os.listdir(_THREADS)) == 1
    return own_program() and alone and "huggingface_hub" not in sys.modules


def run_in_fork(module: str, arguments: Sequence[str], seconds: float, output: Path) -> int | None:
    """Call ``main`` of a module in a fork; return its exit code, or -N after signal N.

    None if it did not end within ``seconds``: it was killed, with what it had started. ``output``: the file
    that gets what it prints.
    """
    output.touch(0o600)
    dies = die_with_parent()

    def run() -> None:
        os.setsid()
        if dies is not None:
            dies()
        file = os.open(output, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.environ["HF_HUB_OFFLINE"] = "1"
        raise SystemExit(import_module(module).main(*arguments))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        child.join(seconds)
        return child.exitcode
    finally:
        if child.exitcode is None:
            send_group(child.pid or 0, signal.SIGKILL)
            child.kill()
            child.join()
