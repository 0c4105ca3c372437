"""``paceline doctor``: this machine, or a run that ended in a time-out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import existing_run
from paceline.core.diagnostics import errors
from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir


def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="A run that ended in a time-out: its ranks' last collectives are compared."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check this machine: devices as torch, the driver's tool and /dev see them, and how to fix problems.

    Exit code: 0 if a training can run, 1 if a problem prevents it, 2 if RUN is no run.
    """
    from paceline.doctor import report
    from paceline.doctor.flights import run_findings
    from paceline.doctor.inspect import inspect
    from paceline.doctor.report import findings

    if run is not None:
        existing_run(run)
    seen = inspect(dict(os.environ))
    problems = [*findings(seen), *(run_findings(RunDir.at(run)) if run is not None else ())]
    if as_json:
        typer.echo(json.dumps(report.as_json(seen, problems), indent=1, ensure_ascii=False))
    else:
        typer.echo(report.text(seen, problems))
    raise typer.Exit(int(ExitCode.FAILED if errors(problems) else ExitCode.OK))
