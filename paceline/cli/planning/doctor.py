"""``paceline doctor``: what this machine has for a training, problems, and how to fix them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import existing_run
from paceline.core.diagnostics import errors
from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir
from paceline.doctor.checks import findings
from paceline.doctor.flights import run_findings
from paceline.doctor.inspect import environment, inspect
from paceline.doctor.report import as_json, text

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
_RUN = "A run that ended in a time-out: its ranks' last collectives are compared."


@app.command()
def doctor(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=_RUN)] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check this machine: devices as torch, the driver's tool and /dev see them, and how to fix problems.

    Exit code: 0 if nothing stands in the way of a training, 1 if something does, 2 if RUN is no run.
    """
    if run is not None:
        existing_run(run)
    seen = inspect(environment())
    found = [*findings(seen), *(run_findings(RunDir.at(run)) if run is not None else ())]
    if as_json_:
        typer.echo(json.dumps(as_json(seen, found), indent=1, ensure_ascii=False))
    else:
        typer.echo(text(seen, found))
    raise typer.Exit(int(ExitCode.FAILED if errors(found) else ExitCode.OK))
