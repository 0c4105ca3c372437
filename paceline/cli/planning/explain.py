"""``paceline explain``: what a diagnostic's code means."""

from __future__ import annotations

import difflib
import textwrap
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.core.diagnostics import CodeName, all_codes
from paceline.core.errors import ConfigError
from paceline.core.plugins.registry import load_attr

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
_HELP = "The text in brackets: error[CODE]; one of your own spec as module:CODE. Without it all are listed."
_COLUMNS = 100


@app.command()
def explain(code: Annotated[str | None, typer.Argument(metavar="CODE", help=_HELP)] = None) -> None:
    """Explain a diagnostic's code: what it means, and what to do."""
    typer.echo("\n".join(sorted(all_codes())) if code is None else explained(code.strip("[] ")))


def _own(name: str) -> CodeName | None:
    """Return the code that a user's own module defines, named as ``module:CODE``; None if it is none."""
    found = load_attr(name) if ":" in name else None
    return found if isinstance(found, CodeName) else None


def explained(name: str) -> str:
    """Return the explanation of the code ``name``.

    Raises ConfigError with the nearest codes when it is unknown.
    """
    known = all_codes()
    code = known.get(name) or _own(name)
    if code is not None:
        text = textwrap.fill(code.explanation, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return f"{code.name}\n{text}"
    kin = [c for c in sorted(known) if c.split(".")[0] == name.split(".")[0]]
    near = difflib.get_close_matches(name, known, n=3) or kin[:5]
    hint = f"nearest: {', '.join(near)}" if near else "the code in brackets of a message, e.g. run.exists"
    raise ConfigError(codes.CLI_UNKNOWN_CODE("command line", name, hint=hint))
