"""Keep freed memory in the process on a CPU: large activations are freed and allocated every step, and a
fresh page costs a page fault and zeroing.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # glibc, malloc.h


def configure_malloc() -> bool:
    """Make glibc serve large blocks from the heap and never return them; return whether it was done (False:
    another C library).

    Affects the whole process: call it once in a training worker, before the model is built. It changes no
    result.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    kept = 2**31 - 1
    return all(
        mallopt(option, value) == 1
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, kept), (_M_TOP_PAD, 64 * 2**20))
    )
