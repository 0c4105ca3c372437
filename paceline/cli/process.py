"""Starting ``python -m paceline.…``: the way from the command line to the rooms that import torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from paceline.launch.ending import Ended
from paceline.launch.spec import module_argv

ENTERED = "paceline.launch.entered"  # it hears signals while the module is imported
ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package: a checkout or site-packages


def reach_package() -> None:
    """Let child processes import this package also when it is run from a checkout, from any working directory."""
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if str(ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by ``python -m module …``: same pid, same signals, its exit code."""
    reach_package()
    sys.stdout.flush()
    sys.stderr.flush()
    argv = module_argv(ENTERED, module, *arguments)
    os.execv(argv[0], argv)


def call(module: str, *arguments: str) -> int:
    """Run ``python -m module …`` to its end and answer its exit code. Ctrl-C reaches the child, which is in our process group; what ends us otherwise
    (SIGTERM, a hang-up: ``launch.ending``) ends it too."""
    reach_package()
    child = subprocess.Popen(module_argv(ENTERED, module, *arguments))
    while True:
        try:
            code = child.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:  # the child has it too and decides how to end
            continue
        except SystemExit as stop:
            child.terminate()
            child.wait()
            if isinstance(stop, Ended):
                stop.said = True  # by the child
            raise
