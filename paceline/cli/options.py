"""Shared by several verbs: common arguments, and loading the config (``launch.before.loading``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.launch.before.loading import load as load
from paceline.launch.before.loading import load_to_start as load_to_start

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
