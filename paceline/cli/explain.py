"""``paceline explain``."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def explain(code: Annotated[str, typer.Argument(metavar="CODE", help="What stands in brackets: error[CODE].")]) -> None:
    """Explain a diagnostic's code: what it means, and what to do."""
    from paceline.cli.codes import explained

    typer.echo(explained(code))
