"""``paceline config import``: another system's config as a YAML of ours, and what becomes of its keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import typer

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.core.errors import ConfigError, ExitCode


def import_file(
    file: str,
    arguments: list[str],
    system: str | None,
    algorithm: str | None,
    to: Path | None,
    as_json: bool,
    every: bool,
) -> None:
    """Print or write the imported YAML; the report goes to stderr, or into the JSON.

    ``file`` with ``arguments`` is a command line of the system (``llamafactory-cli train --stage sft …``).
    Raises ConfigError.
    """
    from paceline.config.import_export.check_result import accepted, left_over
    from paceline.config.import_export.commands.command_line import is_command, read_command
    from paceline.config.import_export.import_config import SYSTEMS, import_command, import_config
    from paceline.config.import_export.verdicts import as_json as to_json
    from paceline.config.import_export.verdicts import as_text
    from paceline.rules import of_config

    if system is not None and system not in SYSTEMS:
        raise ConfigError(
            codes.CLI_OPTION("there is no such system", "--from", system, f"one of: {', '.join(SYSTEMS)}")
        )
    if arguments or is_command(file):
        found = import_command(read_command([file, *arguments]), system, algorithm)
    else:
        found = import_config(file, system, algorithm)
    made, refused = accepted(
        found, f"imported by `paceline config import` from {found.file} ({found.system})", of_config
    )
    if to is not None:
        _write(to, made.text)
    if as_json:
        typer.echo(json.dumps(to_json(found, made.text), indent=2, ensure_ascii=False))
    else:
        if to is None:
            typer.echo(made.text, nl=False)
        typer.echo(as_text(found, every=every), err=True)
    problems = refused or left_over(made.text, of_config)
    print_diagnostics(
        replace(item, where=item.where.replace("imported.yaml", str(to))) if to else item for item in problems
    )
    if problems:
        raise typer.Exit(int(ExitCode.CONFIG))


def _write(to: Path, text: str) -> None:
    """Write a new file. Raises ConfigError if there is one."""
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "name another file, or remove this one"
        raise ConfigError(codes.CLI_OPTION("the file exists already", "--to", str(to), hint)) from None
