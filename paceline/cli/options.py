"""Shared by several verbs: common arguments, and loading the config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import codes
from paceline.core.diagnostics import errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

if TYPE_CHECKING:
    from paceline.config.load import Loaded

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


def load(
    config: Path,
    overrides: Sequence[str] | None,
    flags: Mapping[str, Json] | None = None,
    *,
    ruled: bool = True,
) -> Loaded:
    """Load ``config`` with the environment (the guide's variables translated), overrides and flags.

    ``ruled`` False leaves the rules for later, when the machine's facts are known. Raises ConfigError with
    all violations.
    """
    from paceline.config.load import NotLoaded, load_config
    from paceline.launch.environ import translate
    from paceline.rules import of_config

    translation = translate(os.environ)
    wrong = errors(translation.notes)
    try:
        loaded = load_config(
            str(config),
            overrides or (),
            translation.environ(os.environ),
            dict(flags or {}),
            of_config if ruled else None,
        )
    except NotLoaded as error:
        raise NotLoaded((*wrong, *error.diagnostics), error.partial, error.doubt) from None
    except ConfigError as error:
        raise ConfigError(*wrong, *error.diagnostics) from None
    if wrong:
        raise ConfigError(*wrong)
    return replace(loaded, notes=(*translation.notes, *loaded.notes))


def load_to_start(
    config: Path, overrides: Sequence[str] | None, flags: Mapping[str, Json] | None = None
) -> Loaded:
    """``load`` for a run on this machine, without the rules.

    Raises ConfigError with the problems of the config and of the files it names together.
    """
    from paceline.config.load import NotLoaded
    from paceline.launch.before.planned import with_files

    try:
        return load(config, overrides, flags, ruled=False)
    except NotLoaded as error:
        raise with_files(error) from None


def existing_run(run: Path) -> Path:
    """Return ``run`` when it is a run directory.

    Raises ConfigError when it does not exist or holds no run.
    """
    from paceline.core.rundir import RunDir

    if not run.is_dir():
        raise ConfigError(codes.CLI_NO_RUN("there is no such run directory", str(run), hint=_known_runs(run)))
    if not RunDir.at(run).exists():
        raise ConfigError(
            codes.CLI_NO_RUN("this directory is not a run (no plan.json)", str(run), hint=_known_runs(run))
        )
    return run


def _known_runs(run: Path) -> str:
    from paceline.core.rundir import RunDir

    near = [Path("outputs"), run, run.parent]
    found = sorted(
        {
            str(p)
            for folder in near
            if folder.is_dir()
            for p in folder.iterdir()
            if p.is_dir() and RunDir.at(p).exists()
        }
    )
    return (
        "give a run directory; available: " + ", ".join(found[:5])
        if found
        else "give a run directory, e.g. outputs/NAME"
    )
