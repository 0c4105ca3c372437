"""``paceline bench``."""

from __future__ import annotations

import typer

from paceline.cli.process import become

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Measure this machine.",
)


@app.callback()
def root() -> None:
    """Measure this machine."""


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def scaling(context: typer.Context) -> None:
    """Throughput, memory and efficiency on 1, 2, … processes, as measured here."""
    become("paceline.demo.scaling", *context.args)
