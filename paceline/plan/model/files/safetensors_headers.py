"""A model folder's weights by their headers: damaged files, dtypes, and what is not trained. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import MAX_INDEX_BYTES, open_file
from paceline.core.json_types import Json, parse_json
from paceline.core.safetensors_header import FLOATS, header_of
from paceline.plan import codes
from paceline.plan.model.family import beside_text
from paceline.plan.model.parameter_list import SCORE
from paceline.plan.model.quantized_weights import method_of, packed_names, settings_of
from paceline.plan.model.shape import ModelShape

INDEX = "model.safetensors.index.json"


def weights_findings(folder: Path) -> list[Diagnostic]:
    """Return problems of a folder's safetensors: damaged files."""
    problems: list[Diagnostic] = []
    for file in weights_of(folder, problems):
        if wrong := damage(file, "model.name_or_path"):
            problems.append(wrong)
    return problems


def damage(file: Path, key: str) -> Diagnostic | None:
    """Return what is wrong with a safetensors file, by header and size; ``key`` names its folder."""
    try:
        if header_of(file):
            return None
        reason = "it contains no tensor"
    except OSError as error:
        what, hint = "a weight file of the model cannot be read", "copy it again"
        if isinstance(error, PermissionError):
            hint = f"chmod a+r {file.name}, or run as a user who may read it"
        return codes.PLAN_MODEL_FILE(what, key, f"{file}: {error.strerror or error}", hint)
    except ValueError as error:
        reason = str(error)[:200]
    return codes.MODEL_DAMAGED_WEIGHTS(key, f"{file}: {reason}")


def weights_of(folder: Path, problems: list[Diagnostic]) -> list[Path]:
    """Return the weight files: those in the index, else ``model.safetensors``.

    Index problems go to ``problems``.
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
        problems.append(_damaged(index, str(error)))
        return []
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        problems.append(
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


def _damaged(file: Path, reason: str) -> Diagnostic:
    return codes.PLAN_MODEL_FILE(
        "this file of the model is damaged",
        str(file),
        reason,
        "download the model again (hf download …), or use another folder",
    )


_SMALL = {"BF16": "bfloat16", "F16": "float16"}
_HEAD = "lm_head.weight"


def stored(folder: Path) -> tuple[str, frozenset[str]]:
    """Return torch's name of the 16-bit dtype of all tensors of ``folder``, else float32; and their names.

    Raises OSError, and ValueError for a file that is no safetensors.
    """
    kinds, names = dtypes(folder)
    return _float_dtype(kinds), names


def dtypes(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the dtypes in the files of ``folder``, as they name them, and the tensors' names. Raises as
    ``stored``.
    """
    tensors = {key: entry.dtype for file in weights_of(folder, []) for key, entry in header_of(file).items()}
    return frozenset(tensors.values()), frozenset(tensors)


def _float_dtype(kinds: frozenset[str]) -> str:
    return _SMALL.get(next(iter(kinds)), "float32") if len(kinds) == 1 else "float32"


def with_carried(shape: ModelShape, folder: Path) -> ModelShape:
    """Return ``shape`` with the tensors of ``folder`` that are not trained, by their names."""
    try:
        sizes = [
            entry.span[1] - entry.span[0]
            for file in weights_of(folder, [])
            for name, entry in header_of(file).items()
            if beside_text(name, shape.layers)
        ]
    except (OSError, ValueError):  # reported by the check of the folder
        return shape
    return replace(shape, carried=len(sizes), carried_bytes=sum(sizes)) if sizes else shape


def with_quantised(shape: ModelShape, folder: Path, config: Mapping[str, Json]) -> ModelShape:
    """Return ``shape`` with what of ``folder`` is stored quantized, and read as bfloat16."""
    settings = settings_of(config)
    if settings is None:
        return shape
    try:
        tensors = {key: entry for file in weights_of(folder, []) for key, entry in header_of(file).items()}
    except (OSError, ValueError):  # reported by the check of the folder
        return shape
    names = packed_names(tensors, settings)
    plain = names.others(tensors) <= {"BF16"} and not shape.family.read_wide
    twice = shape.tied and _HEAD in names.plain(tensors)
    return replace(
        shape,
        quantised=method_of(config),
        dequantised_bytes=names.num_bytes,
        file_bytes=sum(tensors[n].span[1] - tensors[n].span[0] for n in tensors),
        stored="bfloat16" if plain and names.weights else "",
        in_files=names.others(tensors) <= FLOATS and bool(names.weights) and not twice,
    )


def with_stored(shape: ModelShape, folder: Path, config: Mapping[str, Json], own_code: bool) -> ModelShape:
    """Return ``shape`` with what a rank can read of ``folder`` in parts, and the dtype in which it is read
    whole: fp32 where reading it in 16 bits would change values of the model.
    """
    if own_code:
        return shape
    try:
        kinds, names = dtypes(folder)
    except (OSError, ValueError):  # reported by the check of the folder
        return shape
    twice = shape.tied and _HEAD in names  # whether both are equal is known when both are read
    shape = replace(shape, in_files=bool(kinds) and kinds <= FLOATS and not twice)
    kind = _float_dtype(kinds)
    if kind != "float32" and not shape.family.read_wide:
        return replace(shape, stored=kind, stored_score=SCORE in names)
    return replace(shape, stored="float32", stored_score=SCORE in names) if kinds == {"F32"} else shape
