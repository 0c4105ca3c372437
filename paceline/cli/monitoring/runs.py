"""``paceline runs``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.process import call
from paceline.core.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
COMPARE = "compare"


@app.command()
def runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER | compare A B]", help="A folder of runs [default: outputs], or two runs."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="PNG", help="Draw the curves there [default of compare: compare.png in B]."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs of a folder, or compare two: what their configs differ in, and where they part."""
    from paceline.api.run import Run
    from paceline.api.several_runs import (
        comparison,
        config_differences,
        facts_below,
        parted,
        runs_below,
        table,
    )

    given = words or ["outputs"]
    if given[0] != COMPARE:
        if len(given) > 1:
            hint = "paceline runs FOLDER, or paceline runs compare A B"
            raise ConfigError(codes.CLI_OPTION("one folder is listed", "command line", " ".join(given), hint))
        found = facts_below(Path(given[0]))
        typer.echo(json.dumps([asdict(one) for one in found], indent=1) if as_json else table(found))
        if to is not None:
            raise typer.Exit(call("paceline.watch.runs_plot", str(to), *map(str, runs_below(Path(given[0])))))
        return
    if len(given) != 3:
        hint = "paceline runs compare A B"
        raise ConfigError(codes.CLI_OPTION("two runs are compared", "command line", " ".join(given), hint))
    first, second = Run(given[1]), Run(given[2])
    if as_json:
        differing = {key: list(values) for key, values in config_differences(first, second).items()}
        typer.echo(json.dumps({"config": differing, "parted": parted(first, second)}, indent=1))
    else:
        typer.echo(comparison(first, second))
    picture = to or second.path / "compare.png"
    raise typer.Exit(call("paceline.watch.runs_plot", str(picture), given[1], given[2]))
