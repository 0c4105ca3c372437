"""Check a model folder's weights by their headers: damaged files, dtypes, untrained tensors, and shapes of
another model. No torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import MAX_INDEX_BYTES, open_file
from paceline.core.json_types import Json, parse_json
from paceline.core.safetensors_header import FLOATS, StoredTensor, header_of
from paceline.plan import codes
from paceline.plan.features.peft_settings import names_module, rank_of, rotated, untied
from paceline.plan.model.family import beside_text
from paceline.plan.model.parameter_list import is_linear, of_adapter, parameters_of
from paceline.plan.model.quantized_weights import method_of, packed_names, settings_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec

INDEX = "model.safetensors.index.json"


def weights_findings(folder: Path) -> list[Diagnostic]:
    """Return problems of a folder's safetensors: damaged files."""
    problems: list[Diagnostic] = []
    for file in weights_of(folder, problems):
        if wrong := damage(file, "model.name_or_path"):
            problems.append(wrong)
    return problems


def damage(file: Path, key: str) -> Diagnostic | None:
    """Return the error of a safetensors file, by header and size; ``key``: its folder's config key."""
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
    """Return ``shape`` with the quantized weights of ``folder``, which are read as bfloat16."""
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
    """Return ``shape`` with the tensors of ``folder`` that a rank can read in parts, and the dtype for
    reading it whole: fp32 if 16 bits would change values of the model.
    """
    if own_code:
        return shape
    try:
        kinds, names = dtypes(folder)
    except (OSError, ValueError):  # reported by the check of the folder
        return shape
    twice = shape.tied and _HEAD in names  # whether both are equal is known when both are read
    shape = replace(shape, in_files=bool(kinds) and kinds <= FLOATS and not twice)
    kind, scored = _float_dtype(kinds), any(n.startswith(f"{shape.family.head[-1]}.") for n in names)
    if kind != "float32" and not shape.family.read_wide:
        return replace(shape, stored=kind, stored_score=scored)
    return replace(shape, stored="float32", stored_score=scored) if kinds == {"F32"} else shape


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
#: Tensors with one row per vocabulary entry, in Transformers' decoder families
_ROWS = frozenset(
    {
        "embed_tokens.weight",
        "wte.weight",
        "embed_in.weight",
        "word_embeddings.weight",
        "lm_head.weight",
        "embed_out.weight",
    }
)


def linears(shape: ModelShape) -> dict[str, tuple[int, int]] | None:
    """Return (inputs, outputs) of the linear layers in a decoder layer; None where they are not known."""
    mixture = shape.mixture
    differ = mixture is not None and (shape.latent or mixture.shared or mixture.dense_layers)
    if not shape.family.linears_known or differ:
        return None
    sizes = {}
    for parameter in parameters_of(shape):
        if is_linear(shape, parameter):
            outputs, inputs = parameter.shape
            name = parameter.name.partition(f".{parameter.layer}.")[2].removesuffix(".weight")
            sizes[name] = (inputs, outputs)
    return sizes


def other_sizes(folder: Path, shape: ModelShape) -> list[Diagnostic]:
    """Return weights that do not match ``config.json``; ``weights_findings`` reports damaged files."""
    problems: list[Diagnostic] = []
    try:
        tensors = {
            name: entry for file in weights_of(folder, problems) for name, entry in header_of(file).items()
        }
    except (OSError, ValueError):
        return []
    wrong = list(_misfits(tensors, shape))
    if not wrong:
        return []
    return [
        codes.PLAN_WEIGHTS_SIZES(
            "the weights belong to another model than config.json describes",
            "model.name_or_path",
            f"{folder}: {'; '.join(wrong[:3])}",
            "use the config.json that belongs to these weights (hf download …), or another folder",
        )
    ]


def _misfits(tensors: Mapping[str, StoredTensor], shape: ModelShape) -> Iterator[str]:
    inside, layers = linears(shape) or {}, set[int]()
    for name, entry in sorted(tensors.items()):
        if entry.dtype not in FLOATS or beside_text(name, shape.layers):
            continue
        size, match = list(entry.shape), _LAYER.search(name)
        if match is None:
            if ".".join(name.split(".")[-2:]) in _ROWS and len(size) == 2 and size[0] != shape.vocab:
                yield f"{name} has {size[0]} rows, but vocab_size is {shape.vocab}"
            continue
        layers.add(int(match[1]))
        a, b = inside.get(match[2].removesuffix(".weight"), (0, 0))
        if b and size != [b, a]:
            yield f"{name} is {size}, but config.json requires {[b, a]}"
    if inside and layers and len(layers) < shape.layers:
        yield f"{len(layers)} layers, but num_hidden_layers is {shape.layers}"


TIED = ("model.embed_tokens", "lm_head")  # one weight in models that tie them


def adapter_sizes(folder: Path, adapter: AdapterSpec, shape: ModelShape) -> list[Diagnostic]:
    """Return adapter weights that do not match the model or their own ``adapter_config.json``."""
    inside, saved_modules = linears(shape), adapter.modules_to_save
    if adapter.unties and shape.tied and any(names_module(saved_modules, name) for name in TIED):
        return [untied(", ".join(saved_modules))]
    if inside is None:
        return []
    try:
        tensors = header_of(folder / "adapter_model.safetensors")
    except (OSError, ValueError):  # reported by the check of the folder
        return []
    wrong = []
    for name, entry in sorted(tensors.items()):
        match = _LAYER.search(name)
        linear = of_adapter(match[2]) if match else ""
        if match is None or linear not in inside:
            continue
        a, b = inside[linear]
        rank = rank_of(adapter, f"model.layers.{match[1]}.{linear}")
        shapes = {".lora_A.weight": (rank, a), ".lora_B.weight": (b, rank)}
        if adapter.oft_block_size:
            shapes = {".oft_R.weight": rotated(adapter, a)}
        fits = [*shapes.get(match[2].removeprefix(linear), entry.shape)]
        if int(match[1]) >= shape.layers:
            wrong.append(f"{name}, but the model has {shape.layers} layers")
        elif list(entry.shape) != fits:
            wrong.append(f"{name} is {list(entry.shape)}, the model makes it {fits}")
    if not wrong:
        return []
    return [
        codes.PLAN_WEIGHTS_SIZES(
            "the adapter's weights belong to another model",
            "lora.adapter_name_or_path",
            f"{folder}: {'; '.join(wrong[:3])}",
            "use an adapter that was trained on this model",
        )
    ]
