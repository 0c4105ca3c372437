"""What becomes of freed memory on a CPU. While models are built it goes back to the system; in training it
stays in the process, as large activations are freed and allocated every step, and a fresh page costs a page
fault and zeroing.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # glibc, malloc.h


def return_freed_memory() -> bool:
    """Make glibc map every block of a MiB and more by itself, so that it goes back when it is freed; return
    whether it was done (False: another C library).

    It would soon take blocks of up to 32 MiB from the heap, which ends at the last that is still there. Call
    it before models are built. Affects the whole process and changes no result.
    """
    return _set({_M_MMAP_THRESHOLD: 2**20})


def configure_malloc() -> bool:
    """Make glibc serve large blocks from the heap and never return them; return whether it was done (False:
    another C library).

    Call it in a training worker when the models are built, as what passed through memory meanwhile would
    stay; what is free then is returned. Affects the whole process and changes no result.
    """
    kept = 2**31 - 1
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: kept, _M_TOP_PAD: 64 * 2**20})


def _set(options: dict[int, int]) -> bool:
    """Return what is free to the system, then set ``options`` of mallopt."""
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False
    trim(0)
    return all(mallopt(option, value) == 1 for option, value in options.items())
