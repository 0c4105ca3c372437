"""Resolve paths of a run's config: relative ones start at the folder where the run was started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.checkpoint import codes
from paceline.config.schema import Config
from paceline.config.sections.model import ModelSection
from paceline.core.errors import CheckpointError
from paceline.core.files import is_local_name
from paceline.core.json_types import Json, as_object

START_FOLDER = "start_folder"  # in a checkpoint's state


def path_of_run(name: str, state: Mapping[str, Json], checkpoint: Path, key: str) -> str:
    """Resolve ``name``, a folder or a hub name in the config of ``checkpoint``'s run, for this process.

    ``state``: the checkpoint's; ``key``: its config key. Raises CheckpointError for a path (not a hub name)
    that is in none of the possible folders.
    """
    path = Path(name).expanduser()
    tried = {} if path.is_absolute() else _folders(name, state, checkpoint)
    for folder in tried:
        if (folder / path).is_dir():
            return name if folder == Path.cwd() else os.path.normpath(folder / path)
    if not is_local_name(name) or path.is_dir():
        return name
    places = "; ".join(f"not in {folder} ({meaning})" for folder, meaning in tried.items())
    raise CheckpointError(
        codes.CHECKPOINT_PATH_MISSING(key, f"{name}: {places or 'there is no such folder'}")
    )


def is_file_of_run(name: str, state: Mapping[str, Json], checkpoint: Path) -> bool:
    """Whether ``name``, in the config of ``checkpoint``'s run, is or was a path and not a hub name."""
    path = Path(name).expanduser()
    return (
        is_local_name(name)
        or path.exists()
        or any((folder / path).exists() for folder in _folders(name, state, checkpoint))
    )


def model_of_run(state: Mapping[str, Json], checkpoint: Path) -> ModelSection:
    """Return the ``model`` section of a checkpoint's run, with folders resolved for this process and without
    the permission to run code. Raises CheckpointError as ``path_of_run``.
    """
    model = Config.from_json(as_object(state["config"])).model
    named = {"name_or_path": model.name_or_path, "tokenizer": model.tokenizer}
    folders = {
        key: path_of_run(name, state, checkpoint, f"model.{key}")
        for key, name in named.items()
        if name is not None
    }
    return model.model_copy(update={"trust_remote_code": False, **folders})


def _folders(name: str, state: Mapping[str, Json], checkpoint: Path) -> dict[Path, str]:
    """Return the possible folders of ``name`` with their meaning, the likeliest first.

    Checkpoints of earlier versions do not record where their run was started: a relative output_dir shows it,
    else the run folder's parent is tried.
    """
    run = checkpoint.absolute().parent.parent
    recorded = state.get(START_FOLDER)
    tried = {Path(recorded): "the run was started there"} if isinstance(recorded, str) and recorded else {}
    training = as_object(as_object(state.get("config")).get("training"))
    output = os.path.normpath(
        str(training.get("output_dir") or f"outputs/{training.get('experiment_name') or 'run'}")
    )
    parts = Path(output).parts
    if not os.path.isabs(output) and run.parts[-len(parts) :] == parts:
        tried.setdefault(run.parents[len(parts) - 1], f"the run's output_dir, {output}, begins there")
    tried.setdefault(Path.cwd(), "this command runs there")
    # A name that the hub may have is no folder beside the run: there other runs lie, of any name
    if is_local_name(name):
        tried.setdefault(run.parent, "the run lies there")
    return tried
