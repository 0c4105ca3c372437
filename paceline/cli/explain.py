"""``paceline explain``."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
_HELP = "What stands in brackets: error[CODE]. Without one all codes are listed."


@app.command()
def explain(code: Annotated[str | None, typer.Argument(metavar="CODE", help=_HELP)] = None) -> None:
    """Explain a diagnostic's code: what it means, and what to do."""
    from paceline.cli.codes import all_codes, explained

    typer.echo(all_codes() if code is None else explained(code.strip("[] ")))
