"""``paceline plan``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.options import ConfigFile, Overrides, load
from paceline.cli.report import tell

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(help="Processes on this node [default: one a GPU, one on a CPU].")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole plan as JSON.")] = False,
) -> None:
    """Show what a training would do on this machine and why. Starts nothing, writes nothing, imports no torch."""
    from paceline.cli.planned import Asked, planned
    from paceline.plan.explain import explain

    asked = Asked(nproc=nproc, nnodes=nnodes)
    loaded = load(config, overrides, asked.flags())
    made, warnings = planned(loaded)
    tell((*loaded.notes, *warnings))
    typer.echo(json.dumps(made.to_json(), indent=2, ensure_ascii=False) if as_json else explain(made), nl=as_json)
