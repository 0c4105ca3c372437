"""Compare shapes in safetensors headers with ``config.json``, to refuse another model's weights. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.safetensors_header import FLOATS, StoredTensor, header_of
from paceline.plan import codes
from paceline.plan.features.peft_settings import names_module, rank_of, untied
from paceline.plan.model.family import beside_text
from paceline.plan.model.files.safetensors_headers import weights_of
from paceline.plan.model.parameter_list import is_linear, parameters_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec

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
        linear, _, half = (match[2] if match else "").rpartition(".lora_")
        if match is None or linear not in inside or half not in ("A.weight", "B.weight"):
            continue
        a, b = inside[linear]
        rank = rank_of(adapter, f"model.layers.{match[1]}.{linear}")
        fits = [rank, a] if half == "A.weight" else [b, rank]
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
