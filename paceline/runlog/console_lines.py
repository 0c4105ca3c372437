"""Console lines around a training: the five before it, and the next commands after it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

#: In the environment of a run's processes: print every line, as ``paceline train --verbose`` does.
VERBOSE = "PACELINE_VERBOSE"
_LABEL_WIDTH = 12
_MOST_COMMANDS = 3


def is_verbose(environ: Mapping[str, str]) -> bool:
    """Whether to print every line: the variable is set, and not to 0."""
    return environ.get(VERBOSE, "") not in ("", "0")


def overview_line(label: str, text: str) -> str:
    """Return a line of the overview before a training, or a command after it."""
    return f"{label:<{_LABEL_WIDTH}}{text}"


def short_path(path: str | Path) -> str:
    """Return ``path`` relative to the current directory if it lies inside."""
    whole, here = Path(path), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) and whole != here else str(path)


def next_commands(run: str | Path, *, resume: str = "", saved: bool = True, answers: bool = True) -> str:
    """Return at most three lines with the next commands for a run that has ended.

    - ``resume``: the command that continues a run that was stopped, which comes first
    - ``saved``: the run has a checkpoint
    - ``answers``: its model writes text, so one can chat with it
    """
    folder = shlex.quote(short_path(run))
    commands = (
        ("resume", resume),
        ("chat", f"paceline chat {folder}" if saved and answers else ""),
        ("export", f"paceline export {folder} --to DIR" if saved else ""),
        ("watch", f"paceline watch {folder}"),
        ("report", f"paceline report {folder}"),
    )
    lines = [overview_line(label, command) for label, command in commands if command]
    return "\n".join(lines[:_MOST_COMMANDS])
