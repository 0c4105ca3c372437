"""The mark of the last checkpoint whose every byte was read and found sound: retention keeps it. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paceline.checkpoint.format.durable_files import replace_text
from paceline.checkpoint.format.folder_layout import VERIFIED, is_step_name
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES
from paceline.checkpoint.format.verify_files import open_part
from paceline.core.errors import CheckpointError

_MOST = 128


def mark_verified(checkpoint: Path) -> None:
    """Record that all of ``checkpoint`` has been verified, if it stands among a run's. Raises OSError."""
    if not is_step_name(checkpoint.name) or checkpoint.parent.name != "checkpoints":
        return
    if (found := _mark_of(checkpoint)) is not None:
        replace_text(checkpoint.parent / VERIFIED, found)


def last_verified(checkpoints: Path) -> str | None:
    """Return the name of the last verified checkpoint of the folder; None if it was saved again since."""
    try:
        with open_part(checkpoints, VERIFIED) as file:
            text = file.read(_MOST).decode("ascii", "replace")
    except CheckpointError:
        return None
    name = text.partition(" ")[0]
    return name if is_step_name(name) and _mark_of(checkpoints / name) == text else None


def manifest_digest(checkpoint: Path) -> str | None:
    """Return the sha256 of a checkpoint's manifest, or None if it cannot be read."""
    try:
        with open_part(checkpoint, MANIFEST) as file:
            return hashlib.sha256(file.read(MAX_MANIFEST_BYTES)).hexdigest()
    except CheckpointError:
        return None


def _mark_of(checkpoint: Path) -> str | None:
    """Return the name and the manifest's sha256, or None if it cannot be read."""
    digest = manifest_digest(checkpoint)
    return None if digest is None else f"{checkpoint.name} {digest}\n"
