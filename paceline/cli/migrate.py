"""``paceline migrate``: a folder of another program, file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import AsJson
from paceline.core.errors import ExitCode


def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder with scripts and configs, or one of them.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write each job's YAML there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist in --to.")] = False,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="List every key, also those that are kept.")] = False,
) -> None:
    """Translate a folder of another program: scripts, configs, data descriptions, manifests.

    Reports file by file what is kept, what differs and what is lost, with our YAML and our command for each
    job. Nothing of the folder is executed. Exit code 1: something that acts was lost.
    """
    from paceline.api.migrating import migrate as migrated
    from paceline.config.import_export.folders.report import report_json, report_text

    migration = migrated(path, to=to, force=force)
    if as_json:
        typer.echo(json.dumps(report_json(migration, to), indent=1, ensure_ascii=False))
    else:
        typer.echo(report_text(migration, to, every=every))
    raise typer.Exit(int(ExitCode.FAILED if migration.loses else ExitCode.OK))
