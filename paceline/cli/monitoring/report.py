"""``paceline report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import existing_run
from paceline.cli.monitoring.watch import cache_folder
from paceline.cli.options import RunFolder

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def report(
    run: RunFolder,
    to: Annotated[Path, typer.Option("--to", metavar="HTML", help="The file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the page of a run as one HTML file that opens anywhere, without a network."""
    from paceline.watch.page.report import write_report
    from paceline.watch.page.runs import Runs

    with Runs(existing_run(run), cache_folder()) as runs:
        (run_id,) = runs.found()
        view = runs.view(run_id)
        if view is not None:
            typer.echo(write_report(view, to, progress=typer.echo))
