"""``paceline data show``."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.options import ConfigFile, Overrides
from paceline.cli.process import call
from paceline.launch.preflight.load_config import load

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Look at the data of a YAML.",
)


@app.callback()
def root() -> None:
    """Look at the data of a YAML as the model gets them."""


@app.command()
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    row: Annotated[
        int | None, typer.Option(min=1, help="Print this row (from 1) as the model gets it, not the totals.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to print from --row on.")] = 1,
    dataset: Annotated[int, typer.Option(min=1, help="Which data set of the list (from 1).")] = 1,
    evaluation: Annotated[bool, typer.Option("--eval", help="Rows of data.eval, not of data.train.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The totals as JSON.")] = False,
    to: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the totals, too.")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Where the prepared data are kept [default: data.cache_dir, $PACELINE_CACHE]."),
    ] = None,
) -> None:
    """Print rows with what carries loss in colour, or the totals of all data.

    The totals are of the prepared data (lengths, share with loss, cut off, left out, duplicates, fields that
    took no part); data that are not prepared yet are prepared first.
    """
    from paceline.launch.environment.guide_variables import cache_folder

    loaded = load(config, overrides or [])
    print_diagnostics(loaded.notes)
    place = str(cache) if cache is not None else loaded.config.data.cache_dir or str(cache_folder(os.environ))
    more = ["--rows", str(rows), "--dataset", str(dataset)]
    more += ["--row", str(row)] if row is not None else []
    more += ["--eval"] if evaluation else []
    more += ["--json"] if as_json else []
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described = Path(folder) / "config.json"
        described.write_text(json.dumps(loaded.config.to_json()), encoding="utf-8")
        totals = str(Path(folder) / "totals.json")
        more += ["--totals", totals] if to is not None else []
        code = call("paceline.data.preview", "--config-json", str(described), "--cache", place, *more)
        if code == 0 and to is not None and row is None:
            length = str(loaded.config.data.max_length)
            code = call("paceline.watch.lengths_plot", totals, length, str(to))
        raise typer.Exit(code)
