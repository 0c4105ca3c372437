"""Keep freed memory in the process on a CPU: large activations come and go every step, and fresh pages cost a fault and a clearing each."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # glibc, malloc.h


def keep_heap() -> bool:
    """Tell glibc to serve large blocks from the heap and not to return them; whether it was done (False: another C library).

    Acts on the whole process: for a training worker, called once before the model is built. A no-op for the result of any computation.
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
