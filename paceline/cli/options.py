"""Arguments that several verbs share, and the applications of verbs with several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

#: Of every typer application: plain text, and exceptions that ``cli.errors`` reports.
PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "add_completion": False,
    "pretty_exceptions_enable": False,
}
#: Settings of a command whose arguments go to another program, which answers --help too.
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Values that override the YAML, e.g. training.learning_rate=1e-4."
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help=(
            "What starts the ranks: spawn (Paceline itself), torchrun, mpirun, accelerate or deepspeed"
            " [default: spawn]."
        ),
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, e.g. outputs/demo.")]
RunOrUrl = Annotated[  # a Path would make s3:/ of s3://
    str,
    typer.Argument(metavar="RUN", help="A run directory, e.g. outputs/demo; or a URL: s3://bucket/folder."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]


def group(text: str) -> typer.Typer:
    """Return an application of several commands, with its line of help."""
    app = typer.Typer(**PLAIN, no_args_is_help=True, help=text)
    # Without a callback typer makes a plain command of a group that has one command only
    app.callback()(lambda: None)
    return app
