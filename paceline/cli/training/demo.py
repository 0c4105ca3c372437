"""``paceline demo``."""

from __future__ import annotations

import typer

from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def demo(context: typer.Context) -> None:
    """Train a small model from scratch on two processes and show what it learnt."""
    become("paceline.demo", *context.args)
