"""``paceline config show``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import ConfigFile, Overrides, load
from paceline.cli.report import print_diagnostics

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Show the effective config of a YAML.",
)


@app.callback()
def root() -> None:
    """Look at what a YAML comes to."""


@app.command()
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The effective config as JSON, without the places.")
    ] = False,
) -> None:
    """Print each effective value with the layer and file:line that set it."""
    import json

    from paceline.config.show import render_show

    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    typer.echo(
        json.dumps(loaded.config.to_json(), indent=2, ensure_ascii=False) if as_json else render_show(loaded)
    )
