"""The end of a process whose process group may be broken."""

from __future__ import annotations

import contextlib
import os
import sys


def leave(code: int) -> None:
    """Flush and end the process at once, without destructors: what is left of a broken process group can hang in them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(int(code))
