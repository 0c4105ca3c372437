"""Whether kernels can be compiled here at their first call: Triton's package, a C compiler and Python's
headers, with which Triton builds the little program that starts a kernel.
"""

from __future__ import annotations

import shutil
import sysconfig
from importlib import util
from pathlib import Path


def triton_obstacle() -> str:
    """Return why Triton's kernels cannot be compiled by this Python on this machine; empty if they can."""
    if util.find_spec("triton") is None:
        return "Triton is not installed"
    if not any(map(shutil.which, ("gcc", "clang", "cc"))):
        return "there is no C compiler"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if headers.is_file() else "Python.h is missing"
