"""Hold back what native code writes to stderr while torch connects: its stack traces are pages, and the error
that follows names the cause.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from typing import BinaryIO

from paceline.launch.environment.device_variables import QUIET_TORCH
from paceline.launch.environment.guide_variables import current

_STDERR = 2
_TRACE = re.compile(
    rb"^\[[EW]\d[^\n]*\] \[c10d\] [^\n]*\n(?:(?:Exception raised from|frame #|<omitting) ?[^\n]*\n)*\n?", re.M
)


class HeldStderr:
    """stderr as it is until ``hold``; ``release`` writes what was held, without c10d's lines.

    Holds nothing where the user asks for torch's lines (``TORCH_CPP_LOG_LEVEL``), or while another holds. The
    process has one stderr; the second to release would restore the first one's file.
    """

    _only = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a connection that was given up may end at any time
        self._held: BinaryIO | None = None
        self._own = _STDERR

    def hold(self) -> None:
        """Hold back from now on."""
        environ = current()
        if any(environ.get(name) != level for name, level in QUIET_TORCH.items()):
            return
        with self._lock:
            if self._held is None and self._only.acquire(blocking=False):
                sys.stderr.flush()
                self._own = os.dup(_STDERR)
                self._held = tempfile.TemporaryFile()  # noqa: SIM115  (closed by ``release``)
                os.dup2(self._held.fileno(), _STDERR)

    def release(self) -> None:
        """Write what was held back, except for c10d's lines."""
        with self._lock:
            if self._held is None:
                return
            sys.stderr.flush()
            os.dup2(self._own, _STDERR)
            os.close(self._own)
            self._held.seek(0)
            rest = _TRACE.sub(b"", self._held.read())
            self._held.close()
            self._held = None
            self._only.release()
        print(rest.decode("utf-8", "replace"), end="", file=sys.stderr, flush=True)
