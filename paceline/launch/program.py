"""The program that runs, as a module that other processes can import."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def importable_program() -> str:
    """Return the name under which this process and its children import the running program.

    Its folder is put first on ``PYTHONPATH``; what it defined is not made a second time here. ``__main__``
    where it has no file (a prompt, ``python -c``).
    """
    program = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    file = getattr(program, "__file__", None)
    if spec is not None:  # python -m package.module
        name = str(spec.name).removesuffix(".__main__")
    elif file is None:
        return "__main__"
    else:
        name, folder = Path(file).stem, str(Path(file).resolve().parent)
        given = os.environ.get("PYTHONPATH", "")
        if folder not in given.split(os.pathsep):
            os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{given}" if given else folder
    sys.modules.setdefault(name, program)
    return name


def keep_docstrings() -> None:
    """Have the processes that this one starts keep docstrings, without which Transformers makes no model."""
    if sys.flags.optimize > 1 and "PYTHONOPTIMIZE" in os.environ:
        os.environ["PYTHONOPTIMIZE"] = "1"
