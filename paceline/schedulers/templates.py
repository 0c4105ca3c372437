"""Templates of files for schedulers, with filters that quote what goes into them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from paceline.launch.supervision.exit_policy import AFTER, After

SHARED = Path(__file__).parent / "scripts"


def environment(folder: Path) -> Environment:
    """Return the environment of ``*.jinja`` in a folder and in the shared one; an unset name is an error.

    Filters: ``sh`` quotes a word for a POSIX shell, ``argv`` a command.
    """
    # Scripts, no pages: a shell's quotes are what a value needs
    made = Environment(  # noqa: S701
        loader=FileSystemLoader((folder, SHARED)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        comment_start_string="<#",  # {# stands in ${#array[@]}
        comment_end_string="#>",
    )
    made.filters["sh"] = _word
    made.filters["argv"] = _argv
    return made


def codes_after(after: After) -> str:
    """Return the exit codes that are followed by ``after`` as a pattern of a shell's ``case``: ``0|70``."""
    return "|".join(str(int(code)) for code, follows in AFTER.items() if follows is after)


def _word(value: str | int | Path) -> str:
    return shlex.quote(str(value))


def _argv(words: Sequence[str]) -> str:
    return shlex.join(words)
