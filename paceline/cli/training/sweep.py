"""``paceline sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.process import call
from paceline.core.errors import ExitCode

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.")],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=A,B,C...", help="Values to try, one run each; several keys: every combination."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Folder of the runs [default: outputs/NAME-sweep]."),
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes of each run, as in train.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which runs there would be.")] = False,
) -> None:
    """Train once for each value of a key, one run after the other, and compare the runs.

    All configs are checked before the first run. The same command goes on: runs that are complete are not
    repeated, stopped ones are resumed. A value with commas of its own is written in brackets, as a list.
    """
    from paceline.api.several_runs import facts_below, table
    from paceline.api.sweeping import planned_runs

    folder = to or Path("outputs") / f"{config.stem}-sweep"
    wanted = planned_runs(config, settings, folder)
    for run in wanted:
        typer.echo(f"{run.name:<40} {run.todo}", err=True)
    if dry_run:
        return
    failed = 0
    for run in wanted:
        if run.todo == "done":
            continue
        more = ["--nproc", str(nproc)] if nproc else []
        typer.echo(f"\nsweep: {run.name}", err=True)
        code = call("paceline.cli.main", "train", str(config), *run.settings, *more)
        if code in (ExitCode.STOPPED, ExitCode.INTERRUPTED):
            raise typer.Exit(code)
        failed += code != ExitCode.OK
    typer.echo()
    typer.echo(table(facts_below(folder)))
    paths = [str(run.path) for run in wanted if (run.path / "plan.json").is_file()]
    call("paceline.watch.runs_plot", str(folder / "sweep.png"), *paths)
    raise typer.Exit(int(ExitCode.FAILED if failed else ExitCode.OK))
