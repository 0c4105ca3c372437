"""``paceline prepare``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.options import ConfigFile, Overrides
from paceline.cli.process import call
from paceline.launch.preflight.load_config import load

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Where the prepared data are kept [default: data.cache_dir, $PACELINE_CACHE,"
                " ~/.cache/paceline]."
            )
        ),
    ] = None,
) -> None:
    """Tokenise and store the data ahead of training.

    Later trainings with the same data, tokenizer, template and length then start at once.
    """
    raise typer.Exit(prepare_data(config, overrides or [], cache))


def prepare_data(config: Path, overrides: Sequence[str], cache: Path | None = None) -> int:
    """Prepare the data that ``config`` describes and return the exit code."""
    from paceline.launch.environment.guide_variables import cache_folder

    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    place = str(cache) if cache is not None else loaded.config.data.cache_dir or str(cache_folder(os.environ))
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described = Path(folder) / "config.json"
        described.write_text(json.dumps(loaded.config.to_json()), encoding="utf-8")
        return call("paceline.data.prepare.main", "--config-json", str(described), "--cache", place)
