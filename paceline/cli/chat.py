"""``paceline chat``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def chat(
    context: typer.Context,
    run: RunFolder,
    prompt: Annotated[str | None, typer.Option(help="Answer this one prompt and end.")] = None,
) -> None:
    """Talk to what a run has trained. RUN may also be an exported folder."""
    become("paceline.generation.chat", str(run), *(["--prompt", prompt] if prompt is not None else []), *context.args)
