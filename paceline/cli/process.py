"""Start ``python -m paceline.…``: how the command line runs code that imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from paceline.core.package import ROOT, cache_folder
from paceline.launch.process_spec import ENTERED, module_argv
from paceline.launch.program import EndedBySignal

if TYPE_CHECKING:
    from paceline.config.load import Loaded


OptionValue = str | int | float | Path | None


def reach_package() -> None:
    """Put the package's folder on PYTHONPATH, so that child processes in any folder can import it."""
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if str(ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])


def words(**options: OptionValue | list[str]) -> list[str]:
    """Return options as words of a command line: ``top_p=0.7`` becomes ``--top-p 0.7``.

    None and False give nothing, True the name alone, and a list its option once for each item.
    """
    arguments = []
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item is not False:
                arguments += [f"--{name.replace('_', '-')}", *([] if item is True else [str(item)])]
    return arguments


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by ``python -m module …``: same pid and signals, and its exit code."""
    reach_package()
    become_program(module_argv(ENTERED, module, *arguments))


def become_program(argv: Sequence[str]) -> NoReturn:
    """Replace this process by a program, given by its path: same pid and signals, and its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], list(argv))


def call(module: str, *arguments: str) -> int:
    """Run ``python -m module …`` to its end and return its exit code.

    Ctrl-C reaches the child too, which is in our process group. Any other signal that ends this process
    (SIGTERM, SIGHUP: ``launch.program``) terminates the child.
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


def call_on_data(module: str, loaded: Loaded, cache: Path | None, *arguments: str) -> int:
    """Run a module on a config and its prepared data (in ``cache`` if given); return the exit code."""
    data_folder = cache or loaded.config.data.cache_dir or cache_folder(os.environ)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described = Path(folder) / "config.json"
        described.write_text(json.dumps(loaded.config.to_json()), encoding="utf-8")
        return call(module, "--config-json", str(described), "--cache", str(data_folder), *arguments)
