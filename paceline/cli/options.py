"""Shared by several verbs: common arguments, and loading the config (``launch.before.loading``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.launch.preflight.load_config import load as load
from paceline.launch.preflight.load_config import load_to_start as load_to_start

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

# What an export is of and how it is written: of ``export`` and ``push``.
ExportDtype = Annotated[str, typer.Option("--dtype", help="float32 (as trained), bfloat16 or float16.")]
WhichCheckpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="WHICH",
        help="latest, best or step-N; result is the one that the run's result names.",
    ),
]
ModelRole = Annotated[str, typer.Option("--role", help="Which model of the run.")]
MergeAdapter = Annotated[
    bool,
    typer.Option(
        "--merge",
        help="Merge a run's adapter into its base model; a run without an adapter is written unchanged.",
    ),
]
AlsoGguf = Annotated[
    bool,
    typer.Option(
        "--gguf",
        help="Also write model.gguf (20 families; others are refused by name), read back and compared.",
    ),
]
Exporter = Annotated[
    list[str] | None,
    typer.Option(
        "--exporter",
        metavar="NAME",
        help="Also: gguf, or your own as module:function; several times; none [training.exporters].",
    ),
]
MaxShardSize = Annotated[
    str,
    typer.Option("--max-shard-size", metavar="SIZE", help="Of a file of weights: 5GB, 500MB, 2GiB."),
]


def export_options(
    to: str,
    dtype: str,
    checkpoint: str,
    role: str,
    merge: bool,
    gguf: bool,
    exporter: list[str] | None,
    max_shard_size: str,
    overwrite: bool,
) -> list[str]:
    """Return these options for ``paceline.checkpoint.export.main``."""
    values = {
        "--to": to,
        "--dtype": dtype,
        "--checkpoint": checkpoint,
        "--role": role,
        "--max-shard-size": max_shard_size,
    }
    flags = {"--merge": merge, "--gguf": gguf, "--overwrite": overwrite}
    return [
        *(part for pair in values.items() for part in pair),
        *(part for name in exporter or () for part in ("--exporter", name)),
        *(name for name, given in flags.items() if given),
    ]
