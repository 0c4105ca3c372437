"""Check that a checkpoint's folder name, manifest and state agree on the step and world size. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.manifest import HF_FOLDER, STATE, Manifest
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.format.verify_files import open_if_there, open_part
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import Json, JsonObject

MAX_STATE_BYTES = 256 * 1024 * 1024
_NAMED = re.compile(r"(?:\.replaced-)?step-(\d{8,15})(?:-[0-9a-f]+)?")
_SHARD = re.compile(r"shard-\d+-of-(\d+)\.safetensors")


def check_name(checkpoint: Path, manifest: Manifest) -> None:
    """Raise CheckpointError if the folder is named after another step, or shards after another world size.

    Reads no files.
    """
    named = _NAMED.fullmatch(checkpoint.name)
    if named and int(named[1]) != manifest.step:
        raise _misplaced(
            checkpoint,
            f"the folder is named step {int(named[1])}, but its manifest is of step {manifest.step}",
        )
    for name in manifest.files:
        shard = _SHARD.fullmatch(name)
        if shard and int(shard[1]) != manifest.world_size:
            raise _misplaced(checkpoint, f"{name} in a checkpoint of {manifest.world_size} ranks")


def check_state(checkpoint: Path, manifest: Manifest, state: Mapping[str, Json]) -> None:
    """Raise CheckpointError if the state's step or world size differs from the manifest's.

    Absent fields pass.
    """
    train = state.get("train")
    step = train.get("step") if isinstance(train, Mapping) else None
    for what, mine, theirs in (
        ("step", step, manifest.step),
        ("world_size", state.get("world_size"), manifest.world_size),
    ):
        if mine is not None and mine != theirs:
            raise _misplaced(checkpoint, f"{what}: {str(mine)[:40]} in state.json, {theirs} in manifest.json")


def read_state(checkpoint: Path) -> JsonObject:
    """Read ``state.json``. Raises CheckpointError."""
    with open_part(checkpoint, STATE) as file:
        return parse_object(
            file.read(MAX_STATE_BYTES + 1), str(checkpoint / STATE), max_bytes=MAX_STATE_BYTES
        )


def read_config(checkpoint: Path) -> JsonObject:
    """Read ``hf/config.json``; empty if it is missing. Raises CheckpointError."""
    path = checkpoint / HF_FOLDER / "config.json"
    file = open_if_there(checkpoint, f"{HF_FOLDER}/config.json")
    if file is None:
        return {}
    with file:
        return parse_object(file.read(MAX_CONFIG_BYTES + 1), str(path), max_bytes=MAX_CONFIG_BYTES)


def _misplaced(checkpoint: Path, found: str) -> CheckpointError:
    return CheckpointError(codes.CHECKPOINT_MISPLACED(str(checkpoint), found))
