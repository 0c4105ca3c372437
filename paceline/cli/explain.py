"""``paceline explain``: what a diagnostic's code means."""

from __future__ import annotations

import difflib
import textwrap
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.core.diagnostics import all_codes
from paceline.core.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
_HELP = "The text in brackets: error[CODE]. Without it all codes are listed."
_COLUMNS = 100


@app.command()
def explain(code: Annotated[str | None, typer.Argument(metavar="CODE", help=_HELP)] = None) -> None:
    """Explain a diagnostic's code: what it means, and what to do."""
    typer.echo("\n".join(sorted(all_codes())) if code is None else explained(code.strip("[] ")))


def explained(name: str) -> str:
    """Return the explanation of the code ``name``.

    Raises ConfigError with the nearest codes when it is unknown.
    """
    known = all_codes()
    if name in known:
        text = textwrap.fill(known[name].explanation, _COLUMNS, initial_indent="  ", subsequent_indent="  ")
        return f"{name}\n{text}"
    kin = [c for c in sorted(known) if c.split(".")[0] == name.split(".")[0]]
    near = difflib.get_close_matches(name, known, n=3) or kin[:5]
    hint = f"nearest: {', '.join(near)}" if near else "the code in brackets of a message, e.g. run.exists"
    raise ConfigError(
        codes.CLI_UNKNOWN_CODE("there is no diagnostic with this code", "command line", name, hint)
    )
