"""Where a rank's main thread is: the line of its own code, and all threads' stacks."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import sysconfig
import threading
from pathlib import Path
from types import CodeType, FrameType

import torch.distributed

from paceline.runtime.process_group import wait_clock

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_DISTRIBUTED = os.path.dirname(torch.distributed.__file__) + os.sep
_LONGEST = 200  # characters, so that heartbeats stay small


def place() -> str:
    """Return ``score (my_rewards.py:12)``: the innermost call outside libraries; empty if unknown."""
    frame = _main_frame()
    return "" if frame is None else _shown(_own(frame) or frame)


class DistributedCall:
    """How long the main thread has stood at one instruction of ``torch.distributed``.

    The flight recorder has no sends and receives of gloo, which a pipeline's stages wait in.
    """

    def __init__(self) -> None:
        self._at: tuple[CodeType, int] | None = None
        self._since = 0.0

    def seconds(self, now: float) -> tuple[str, float]:
        """Return the call and for how long it stood there at the looks so far; empty and 0 if in none."""
        frame = _main_frame()
        if frame is None or not frame.f_code.co_filename.startswith(_DISTRIBUTED):
            self._at = None
            return "", 0.0
        # The same instruction of the same code: a loop that makes call after call moves on in between.
        at = frame.f_code, frame.f_lasti
        if at != self._at:
            self._at, self._since = at, now
        return frame.f_code.co_name, now - self._since


def _main_frame() -> FrameType | None:
    """Return the innermost frame; for a timed wait, the frame that called it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    # Our own timer around ``wait`` is not the call that waits.
    while frame is not None and frame.f_code.co_filename == wait_clock.__file__:
        frame = frame.f_back
    return frame


def _own(frame: FrameType | None) -> FrameType | None:
    # ``<``: frozen modules and code made by ``exec`` have no file.
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    return frame


def _shown(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"[-_LONGEST:]


def write_stacks(path: Path) -> None:
    """Write the stacks of all threads; nothing if the file cannot be written."""
    with contextlib.suppress(OSError), path.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
