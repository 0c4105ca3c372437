"""``paceline migrate --prove``: three steps of each job by the other program and by Paceline.

``paceline.migrate`` and the verb: a folder of another program becomes YAMLs and commands of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.config.import_export.folders.list_files import NAMES
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.launch.process_spec import import_path, module_argv
from paceline.plan.model.model_catalogue import known_models, named_config
from paceline.verify import peer_program
from paceline.verify.peer_proof import PeerProof, PeerTask, cannot_be_proven, for_ours, peer_task

if TYPE_CHECKING:
    from paceline.config.import_export.folders.form_jobs import FolderJob, MigratedFolder


_LONGEST = 1200  # seconds of one program
#: what a program wants to be told on a machine without accelerator and network
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "",
    "DISABLE_VERSION_CHECK": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "WANDB_MODE": "disabled",
}


class _NoLosses(Exception):
    """A program failed before it reported losses, with the reason."""


def prove(migration: MigratedFolder, python: Path) -> Iterator[PeerProof]:
    """Yield the proof of each job that was imported; ``python``: of the other program's environment.

    Nothing in the user's folder runs: both programs train a shrunken model on rows, both generated here.
    """
    systems = {name: system for system, name in NAMES.items()}
    for job in migration.jobs:
        if job.imported is not None:
            yield _proof(job, systems[job.imported.system], migration, python)


def _proof(job: FolderJob, system: str, migration: MigratedFolder, python: Path) -> PeerProof:
    name, trainer = NAMES[system], job.trainer
    if why := cannot_be_proven(system, trainer):
        return PeerProof(job.name, name, problem=why)
    known = _model_config(job, migration)
    stand_in = next(iter(known_models()))
    with tempfile.TemporaryDirectory(prefix="paceline-prove-") as scratch:
        folder = Path(scratch)
        task = peer_task(system, job.given, trainer, known or named_config(stand_in), folder)
        notes = [] if known else [f"the model's config is not here: a small {stand_in} stands for it"]
        if task.left_out:
            notes.append(f"left out in both: {', '.join(task.left_out)}")
        if system == "axolotl" and job.given.get("gradient_accumulation_steps") not in (None, 1):
            notes.append("one micro-batch a step: axolotl weighs several alike, Paceline by their tokens")
        if system == "trl" and job.given.get("use_peft"):
            notes.append("all weights train in both: TRL draws its adapters anew")
        try:
            _write(task, folder)
            theirs, ours = _theirs(task, folder, python), _ours(task, folder)
        except _NoLosses as error:
            return PeerProof(job.name, name, problem=str(error), notes=tuple(notes))
    return PeerProof(job.name, name, tuple(theirs), tuple(ours), notes=tuple(notes))


def _model_config(job: FolderJob, migration: MigratedFolder) -> JsonObject | None:
    """Return the config of the job's model: of its folder, or of a model that is known by its name."""
    setting = job.imported.settings.get("model.name_or_path") if job.imported else None
    given = str(setting.value) if setting else ""
    beside = migration.listed.root / job.folder / given
    try:
        return dict(named_config(str(beside) if given and beside.is_dir() else given))
    except ConfigError:
        return None


def _write(task: PeerTask, folder: Path) -> None:
    """Write rows, model and adapter."""
    for name, text in task.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    job = folder / "sibling.json"
    job.write_text(json.dumps(task.sibling), encoding="utf-8")
    _run(module_argv("paceline.models.loading.write_sibling", str(job)), folder, import_path(os.environ))


def _theirs(task: PeerTask, folder: Path, python: Path) -> list[float]:
    given, answer = folder / "given.json", folder / "answer.json"
    keys: Json = [task.trainer, task.keys] if task.system == "trl" else task.keys
    given.write_text(json.dumps(keys), encoding="utf-8")
    argv = [str(python), str(peer_program.__file__), task.system, str(given), str(answer)]
    _run(argv, folder, {})
    losses = json.loads(answer.read_text(encoding="utf-8"))
    if isinstance(losses, dict):
        raise _NoLosses(f"{NAMES[task.system]} refuses the keys: {losses['error']}")
    return [float(loss) for loss in losses]


def _ours(task: PeerTask, folder: Path) -> list[float]:
    from paceline.config.import_export.import_config import import_data
    from paceline.config.import_export.verdicts import flat
    from paceline.config.import_export.write_yaml import accepted
    from paceline.core.rundir import RunDir
    from paceline.rules import of_config
    from paceline.runlog.events import Step, read_events

    keys = for_ours(task)
    trainer = task.trainer if task.system == "trl" else None
    imported = import_data(keys, dict.fromkeys(flat(keys), 1), "given.yaml", task.system, trainer)
    composed, problems = accepted(imported, "three steps of a small sibling", of_config)
    if problems:
        raise _NoLosses("\n".join(problem.render() for problem in problems))
    file, run = folder / "ours.yaml", folder / "ours"
    file.write_text(composed.text, encoding="utf-8")
    argv = module_argv("paceline.cli.main", "train", str(file), f"training.output_dir={run}", "--nproc", "1")
    _run(argv, folder, {**import_path(os.environ), "PACELINE_CACHE": str(folder / "cache")})
    events = [record.event for record in read_events(RunDir.at(run).events(0))]
    return [event.loss for event in events if isinstance(event, Step)]


def _run(argv: list[str], folder: Path, more: dict[str, str]) -> None:
    """Run a program to its end. Raises _NoLosses with the end of its output."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _ALONE | more
    try:
        ended = subprocess.run(
            argv, env=environ, cwd=folder, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NoLosses(f"{argv[0]}: {error}") from error
    if ended.returncode:
        last = "\n".join(ended.stderr.strip().splitlines()[-6:])
        raise _NoLosses(f"{Path(argv[0]).name} {' '.join(argv[1:4])} ended with {ended.returncode}: {last}")


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
