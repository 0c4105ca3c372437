"""``paceline migrate``: a folder of another program, file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.options import AsJson
from paceline.core.errors import ConfigError, ExitCode


def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder with scripts and configs, or one of them.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write each job's YAML there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist in --to.")] = False,
    as_json: AsJson = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Train a shrunken copy for three steps with both programs, and compare the losses.",
        ),
    ] = False,
    python: Annotated[
        Path | None,
        typer.Option("--python", help="Python of the other program's environment, for --prove."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every key, also those that are kept.")] = False,
) -> None:
    """Translate a folder of another program: scripts, configs, data descriptions, manifests.

    Reports file by file what is kept, what differs and what is lost, with our YAML and our command for each
    job. Nothing of the folder is executed. Exit code 1: a setting that has an effect was lost.
    """
    from paceline.api.migrating import migrate as migrated
    from paceline.api.proving import prove as proven
    from paceline.config.import_export.folders.report import report_json, report_text

    if prove and python is None:
        message, hint = "a proof asks the other program", "--python /path/of/its/environment/bin/python"
        raise ConfigError(codes.CLI_OPTION(message, "--prove", "", hint))
    migration = migrated(path, to=to, force=force)
    if not as_json:
        typer.echo(report_text(migration, to, every=every))
    proofs = []
    for proof in proven(migration, python) if prove and python else ():
        proofs.append(proof)
        if not as_json:
            typer.echo(f"\n{proof.text()}")
    if as_json:
        report = report_json(migration, to)
        report |= {"proofs": [proof.to_json() for proof in proofs]} if prove else {}
        typer.echo(json.dumps(report, indent=1, ensure_ascii=False))
    differs = any(proof.difference is not None and not proof.agrees for proof in proofs)
    raise typer.Exit(int(ExitCode.FAILED if migration.loses or differs else ExitCode.OK))
