"""The dtype in which the factory reads a folder's weights, and so holds them in host memory. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.core.json_types import Json
from paceline.core.safetensors_header import FLOATS, header_of
from paceline.plan.model.multimodal import beside_text
from paceline.plan.model.parameter_list import SCORE
from paceline.plan.model.quantized_names import packed_names
from paceline.plan.model.quantized_weights import method_of, settings_of
from paceline.plan.model.safetensors_headers import weights_of
from paceline.plan.model.shape import ModelShape

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
    stored = "bfloat16" if plain and names.weights else ""
    twice = shape.tied and _HEAD in names.plain(tensors)
    return replace(
        shape,
        quantised=method_of(config),
        dequantised_bytes=names.num_bytes,
        file_bytes=sum(tensors[n].span[1] - tensors[n].span[0] for n in tensors),
        stored=stored,
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
