"""``paceline watch``."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.codes import API_NO_RUN
from paceline.cli import codes
from paceline.core.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
PORT = 8765


@app.command()
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
        raise ConfigError(
            API_NO_RUN(
                "there is no such folder", str(folder), hint="name a run directory, or a folder of runs"
            )
        )
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(codes.CLI_PAGE_PACKAGES(found=str(error.name))) from None
    from paceline.watch.page.runs import Runs
    from paceline.watch.page.server import serve

    with listening(port) as server, Runs(folder, cache_folder()) as runs:
        token = secrets.token_urlsafe(24)
        count = len(runs.found())
        place = f"http://127.0.0.1:{server.getsockname()[1]}/?token={token}"
        typer.echo(f"{count} run{'s' if count != 1 else ''} in {folder}")
        typer.echo(f"open {place}\nCtrl-C ends the page; the runs do not notice it")
        serve(runs, token, server)


def listening(port: int | None) -> socket.socket:
    """Return a socket that listens on loopback. Raises ConfigError when ``port`` cannot be had."""
    from paceline.launch.loopback_guard import listening_on

    try:
        return listening_on(port, PORT)
    except (OSError, OverflowError) as error:
        raise ConfigError(codes.CLI_PORT(f"--port {port}", str(error))) from error


def cache_folder() -> Path:
    """Return where indexes of runs are kept between calls: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paceline" / "page"
