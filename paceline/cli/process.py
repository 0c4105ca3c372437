"""Start ``python -m paceline.…``: how the command line runs code that imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

from paceline.core.package import ROOT
from paceline.launch.exit_handling import EndedBySignal
from paceline.launch.process_spec import ENTERED, module_argv


def reach_package() -> None:
    """Put the package's folder on PYTHONPATH, so that child processes in any folder can import it."""
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if str(ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by ``python -m module …``: same pid and signals, and its exit code."""
    reach_package()
    sys.stdout.flush()
    sys.stderr.flush()
    argv = module_argv(ENTERED, module, *arguments)
    os.execv(argv[0], argv)


def call(module: str, *arguments: str) -> int:
    """Run ``python -m module …`` to its end and return its exit code.

    Ctrl-C reaches the child too, which is in our process group. Any other signal that ends this process
    (SIGTERM, SIGHUP: ``launch.ending``) terminates the child.
    """
    reach_package()
    child = subprocess.Popen(module_argv(ENTERED, module, *arguments))
    while True:
        try:
            code = child.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:  # the child receives it too and decides how to exit
            continue
        except SystemExit as stop:
            child.terminate()
            child.wait()
            if isinstance(stop, EndedBySignal):
                stop.reported = True  # by the child
            raise
