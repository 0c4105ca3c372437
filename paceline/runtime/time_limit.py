"""Time limits: for a call that may never return, and for the exit of a broken process group.

torch's stores take a timeout but do not enforce it. ``check``, ``get``, ``set`` and the constructor wait for
the server's answer, forever if the server is stopped or the network is cut. In torch 2.13 only waiting for a
key has a time limit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_with_timeout(seconds: float, call: Callable[[], T], what: str) -> T:
    """Return ``call()``, or raise its exception. Raises TimeoutError after ``seconds``.

    The call is then abandoned in a daemon thread, which ends with the process.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as exc:  # noqa: BLE001 - raised again below, in the calling thread
            failed.append(exc)

    thread = threading.Thread(target=run, name=f"paceline-{what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {seconds:.0f} s: {what}")
    return done[0]


def exit_now(code: int) -> None:
    """Flush and exit at once, without destructors: those of a broken process group can hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(int(code))
