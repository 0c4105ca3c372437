"""``paceline verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.options import ConfigFile, Overrides
from paceline.core.errors import ExitCode
from paceline.launch.preflight.load_config import load

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def verify(
    config: ConfigFile,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(help="Processes on this node [default: one a GPU, one on a CPU].")
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="The reference: single, ddp or fsdp [default: ddp, or single for one data-parallel rank]."
        ),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 5,
    probe: Annotated[bool, typer.Option(help="Also split one global batch as 8×1, 4×2 and 2×4.")] = True,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Keep the runs and verify.json there.")
    ] = None,
) -> None:
    """Check that the chosen strategy computes what a reference strategy computes.

    Trains a small version of the config's model for a few steps under both, and compares the results.
    """
    from paceline.api.verifying import verified

    loaded = load(config, overrides, {"launch.nproc": nproc} if nproc else {}, ruled=False)
    report = verified(
        loaded, against=against, steps=steps, probe=probe, to=to, report=_print, warn=print_diagnostics
    )
    raise typer.Exit(int(ExitCode.OK if report["agrees"] else ExitCode.FAILED))


def _print(text: str) -> None:
    typer.echo(text, nl=False)
