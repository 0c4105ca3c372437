"""``paceline plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import existing_run
from paceline.cli.options import RunFolder
from paceline.cli.process import become

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def plot(
    run: RunFolder,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="PNG", help="The file to write [default: RUN/plot.png].")
    ] = None,
) -> None:
    """Draw loss, accuracy, throughput and memory of a run, finished or still going."""
    become("paceline.watch.plot", str(existing_run(run)), *(["--to", str(to)] if to else []))
