"""``paceline.migrate`` and the verb: a folder of another program becomes YAMLs and commands of ours."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.config.import_export.folders.form_jobs import MigratedFolder


def migrate(
    path: str | PathLike[str], *, to: str | PathLike[str] | None = None, force: bool = False
) -> MigratedFolder:
    """Read a folder (or a file) of scripts and configs of another program, and form its jobs.

    ``to``: write each job's YAML there, and for Slurm its script; ``force``: over existing files. Nothing of
    the folder is executed. Raises ConfigError where nothing starts a training, or a file exists.
    """
    from paceline.config.import_export.folders.form_jobs import migrate_folder
    from paceline.rules import of_config

    migration = migrate_folder(Path(path), of_config)
    if to is not None:
        write(migration, Path(to), force=force)
    return migration


def write(migration: MigratedFolder, to: Path, *, force: bool) -> None:
    """Write the YAMLs and scripts. Raises ConfigError, before the first is written, for one that exists."""
    from paceline.config.import_export.folders.report import command_of

    texts: dict[Path, str] = {}
    for job in migration.jobs:
        command = command_of(job, migration, to)
        if command is not None:
            texts[to / f"{job.name}.yaml"] = job.yaml
            texts |= {to / f"{job.name}.sbatch": command.sbatch} if command.sbatch else {}
    there = [str(file) for file in texts if file.exists() or file.is_symlink()]
    if there and not force:
        raise ConfigError(
            codes.API_ARGUMENT(
                "these files exist already", "--to", ", ".join(there), "another folder, or --force"
            )
        )
    to.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        if force and file.is_symlink():
            file.unlink()
        file.write_text(text, encoding="utf-8")
