"""Check a model folder's files before launch: valid JSON, safetensors headers that match their files.

No torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import MAX_INDEX_BYTES, open_file
from paceline.core.json_types import Json, parse_json
from paceline.core.safetensors_header import header_of
from paceline.plan import codes

INDEX = "model.safetensors.index.json"


def weights_findings(folder: Path) -> list[Diagnostic]:
    """Return problems of a folder's safetensors: damaged files."""
    found: list[Diagnostic] = []
    for file in weights_of(folder, found):
        if wrong := damage(file, "model.name_or_path"):
            found.append(wrong)
    return found


def damage(file: Path, key: str) -> Diagnostic | None:
    """Return what is wrong with a safetensors file, by header and size; ``key`` names its folder."""
    try:
        if header_of(file):
            return None
        found = "it contains no tensor"
    except OSError as error:
        what, hint = "a weight file of the model cannot be read", "copy it again"
        if isinstance(error, PermissionError):
            hint = f"chmod a+r {file.name}, or run as a user who may read it"
        return codes.PLAN_MODEL_FILE(what, key, f"{file}: {error.strerror or error}", hint)
    except ValueError as error:
        found = str(error)[:200]
    what = "a weight file of the model is damaged or truncated"
    return codes.MODEL_DAMAGED_WEIGHTS(what, key, f"{file}: {found}", "copy or download it again")


def weights_of(folder: Path, found: list[Diagnostic]) -> list[Path]:
    """Return the weight files: those in the index, else ``model.safetensors``.

    Index problems go to ``found``.
    """
    index = folder / INDEX
    if not index.exists():
        return [folder / "model.safetensors"] if (folder / "model.safetensors").exists() else []
    try:
        contents = read_json(index, MAX_INDEX_BYTES)
        weight_map = contents.get("weight_map") if isinstance(contents, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError("it has no weight_map")
        files = sorted({name for name in weight_map.values() if isinstance(name, str)})
        if any(not isinstance(name, str) for name in weight_map.values()) or any(
            os.sep in n or n in ("", ".", "..") for n in files
        ):
            raise ValueError("weight_map names something other than files of this folder")
    except (OSError, ValueError) as error:
        found.append(_damaged(index, str(error)))
        return []
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        found.append(
            _damaged(index, f"{len(missing)} of {len(files)} files do not exist: {', '.join(missing[:3])}")
        )
        return []
    return [folder / name for name in files]


def read_json(file: Path, most: int) -> Json:
    """Return a JSON file of at most ``most`` bytes. Raises OSError, or ValueError if it is not JSON."""
    with open_file(file) as opened:
        # read(n) allocates n bytes first
        data = opened.read(min(most, os.fstat(opened.fileno()).st_size) + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return parse_json(data)


def _damaged(file: Path, found: str) -> Diagnostic:
    what = "this file of the model is damaged"
    return codes.PLAN_MODEL_FILE(
        what, str(file), found, "download the model again (hf download …), or use another folder"
    )
