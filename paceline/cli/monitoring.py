"""Verbs that show runs: ``paceline plot``, ``runs``, ``watch`` and ``report``."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.codes import API_NO_RUN
from paceline.api.run import existing_run
from paceline.cli import codes
from paceline.cli.options import RunFolder
from paceline.cli.process import become, call, words
from paceline.core.errors import ConfigError

PORT = 8765  # ``paceline serve`` takes the next one
_PLOTS = "paceline.watch.summary_plots"


def plot(
    run: RunFolder,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="PNG", help="The file to write [default: RUN/plot.png].")
    ] = None,
) -> None:
    """Draw loss, accuracy, throughput and memory of a run, finished or still running."""
    become("paceline.watch.plot", str(existing_run(run)), *words(to=to))


def runs(
    arguments: Annotated[
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
    """List the runs of a folder, or compare two: keys that differ, and the step where they diverge."""
    from paceline.api.run import Run
    from paceline.api.several_runs import (
        comparison,
        config_differences,
        facts_below,
        parted,
        runs_below,
        table,
    )

    command, *paths = arguments or ["outputs"]
    if command != "compare":
        if paths:
            usage = "paceline runs FOLDER, or paceline runs compare A B"
            raise ConfigError(
                codes.CLI_OPTION("one folder is listed", "command line", " ".join(arguments or ()), usage)
            )
        folder = Path(command)
        facts = facts_below(folder)
        typer.echo(json.dumps([asdict(row) for row in facts], indent=1) if as_json else table(facts))
        if to is not None:
            raise typer.Exit(call(_PLOTS, "runs", str(to), *map(str, runs_below(folder))))
        return
    if len(paths) != 2:
        usage = "paceline runs compare A B"
        raise ConfigError(
            codes.CLI_OPTION("two runs are compared", "command line", " ".join(arguments or ()), usage)
        )
    first, second = map(Run, paths)
    if as_json:
        differing = {key: list(values) for key, values in config_differences(first, second).items()}
        typer.echo(json.dumps({"config": differing, "parted": parted(first, second)}, indent=1))
    else:
        typer.echo(comparison(first, second))
    raise typer.Exit(call(_PLOTS, "runs", str(to or second.path / "compare.png"), *paths))


def watch(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[RUN|FOLDER]", help="A run directory, or a folder with runs."),
    ] = Path("outputs"),
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help=f"The port on 127.0.0.1 [default: {PORT}, or a free one if it is in use]."
        ),
    ] = None,
) -> None:
    """Show runs in the browser: live, finished or crashed. Reads their folders only; for this machine only.

    From another machine: ssh -L 8765:127.0.0.1:8765 HOST, then open the printed address.
    """
    if not folder.is_dir():
        remedy = "name a run directory, or a folder of runs"
        raise ConfigError(API_NO_RUN("there is no such folder", str(folder), hint=remedy))
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(codes.CLI_PAGE_PACKAGES(found=str(error.name))) from None
    from paceline.watch.page.server import serve
    from paceline.watch.page.view import Runs

    with listening(port) as server, Runs(folder, page_cache()) as runs:
        token = secrets.token_urlsafe(24)
        count = len(runs.found())
        address = f"http://127.0.0.1:{server.getsockname()[1]}/?token={token}"
        typer.echo(f"{count} run{'s' if count != 1 else ''} in {folder}")
        typer.echo(f"open {address}\nCtrl-C ends the page; the runs continue")
        serve(runs, token, server)


def listening(port: int | None) -> socket.socket:
    """Return a socket that listens on loopback. Raises ConfigError when ``port`` cannot be had."""
    from paceline.launch.loopback_guard import listening_on

    try:
        return listening_on(port, PORT)
    except (OSError, OverflowError) as error:
        raise ConfigError(codes.CLI_PORT(f"--port {port}", str(error))) from error


def page_cache() -> Path:
    """Return where indexes of runs are kept between calls: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paceline" / "page"


def report(
    run: RunFolder,
    to: Annotated[Path, typer.Option("--to", metavar="HTML", help="The file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the page of a run as one HTML file that opens anywhere, without a network."""
    from paceline.watch.page.report import write_report
    from paceline.watch.page.view import Runs

    with Runs(existing_run(run), page_cache()) as runs:
        (run_id,) = runs.found()
        view = runs.view(run_id)
        if view is not None:
            typer.echo(write_report(view, to, progress=typer.echo))
