"""Whether kernels can be compiled here at their first call (Triton's package, a C compiler and Python's
headers, with which Triton builds the little program that starts a kernel), and which flash kernels are
installed.
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


def flash_packages() -> tuple[str, ...]:
    """Return torch's names of the flash kernels whose packages are installed here, without importing them."""
    found = ["FA3"] if util.find_spec("flash_attn_interface") is not None else []
    spec = util.find_spec("flash_attn")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    if any((Path(folder) / "cute" / "interface.py").is_file() for folder in folders):
        found.append("FA4")
    return tuple(found)
