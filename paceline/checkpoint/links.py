"""Links inside a checkpoint: followed within it and to the Hugging Face cache's blobs. No torch."""

from __future__ import annotations

import os
from pathlib import Path

_REPOSITORIES = ("models--", "datasets--")


def target_of(checkpoint: Path, path: Path) -> Path | None:
    """Return the file that ``path`` in ``checkpoint`` leads to through links; None if it leads outside.

    The checkpoint's own folder may be a link. The Hugging Face cache's files are links of a snapshot to the
    blobs of the same repository.
    """
    root, target = Path(os.path.realpath(checkpoint)), Path(os.path.realpath(path))
    if target.is_relative_to(root):
        return target
    for folder in root.parents:
        if folder.name.startswith(_REPOSITORIES) and root.is_relative_to(folder / "snapshots"):
            return target if target.parent == folder / "blobs" else None
    return None
