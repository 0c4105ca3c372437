"""``python -m paceline.schedulers.with_secret NAME FILE COMMAND …``: run a command that takes a secret.

The secret goes from the file, which only its owner can read, into the command's environment, never into its
arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program
from paceline.launch.run_secret import FILE, read_secret


def with_secret(name: str, file: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Return argv of ``command`` with the variable ``name`` from ``file``."""
    return (sys.executable, "-m", "paceline.schedulers.with_secret", name, str(file), *command)


@program
def main(argv: Sequence[str]) -> int:
    """Become the command."""
    name, file, *command = argv
    secret = read_secret({FILE: file}).decode("utf-8", "surrogateescape")
    os.execvpe(command[0], command, {**current(), name: secret})


if __name__ == "__main__":
    main(sys.argv[1:])
