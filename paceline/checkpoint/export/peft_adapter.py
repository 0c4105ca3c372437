"""Export an adapter's checkpoint as a peft folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from paceline.checkpoint import codes
from paceline.checkpoint.export.folder_reader import FolderReads
from paceline.checkpoint.export.hf_folder import (
    ADAPTER_CONFIG,
    config_of,
    is_known,
    text_model_of,
    whole_of,
    write_kept,
)
from paceline.checkpoint.export.multimodal_adapter_names import NamesInWhole
from paceline.checkpoint.export.reload_check import different_as_stored
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.format.untrained_tensors import places_in
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import JsonObject, as_object
from paceline.models.lora.lora import WEIGHTS, adapted_modules, peft_key
from paceline.models.module_tensors import shapes_standing_in

_OF_WHOLE_MODELS = ("config.json", "generation_config.json")


def is_adapter(reader: CheckpointReader) -> bool:
    """Whether the checkpoint holds an adapter, not a full model."""
    return ADAPTER_CONFIG in reader.side_files()


def adapter_entries(
    reader: CheckpointReader, entries: list[TensorEntry], names: NamesInWhole | None
) -> list[TensorEntry]:
    """Rename the tensors to the keys of peft's file.

    A tied weight that was trained is written under both its names, as peft expects. ``names``: where the
    language model is a part of its folder's model.
    """
    adapted = adapted_modules(e.name for e in entries)
    ties = as_object(base_of(reader).get("ties"))
    named = entries + [
        replace(e, name=other) for e in entries for other, own in ties.items() if own == e.name
    ]
    if names is None:
        return [replace(e, name=peft_key(e.name, adapted)) for e in named]
    adapted = frozenset(map(names.of, adapted))
    return [replace(e, name=peft_key(names.of(e.name), adapted)) for e in named]


def write_adapter_files(
    stage: Path, reader: CheckpointReader, trained: Iterable[str], names: NamesInWhole | None
) -> None:
    """Write ``adapter_config.json`` and the tokenizer's files; ``trained``: the names of its tensors in the
    checkpoint.
    """
    files = {name: reader.side_file(name) for name in reader.side_files() if name not in _OF_WHOLE_MODELS}
    if names is not None:
        settings = parse_object(files[ADAPTER_CONFIG], str(reader.path), max_bytes=MAX_CONFIG_BYTES)
        files[ADAPTER_CONFIG] = json.dumps(names.settings(settings, trained), indent=2).encode()
    write_kept(stage, files)


def check_adapter(stage: Path, entries: list[TensorEntry], reader: CheckpointReader) -> None:
    """Compare every tensor of the folder, and have peft load it. Raises CheckpointError."""
    stored = places_in(stage / WEIGHTS, stage)
    wrong = sorted({e.name for e in entries} ^ set(stored))
    with FolderReads() as files:
        wrong += different_as_stored([e for e in entries if e.name in stored], stored, files)
    if wrong := wrong or _peft_misses(stage, reader):
        what = "peft loads other weights than were written; the export was removed"
        raise CheckpointError(codes.EXPORT_LOAD_CHECK(what, str(reader.path), ", ".join(wrong[:5])))


def _peft_misses(stage: Path, reader: CheckpointReader) -> list[str]:
    """Return what goes wrong when peft loads the folder on its base, whose own weights have no storage."""
    from peft import LoraConfig, PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    config = config_of(reader, "float32")
    if not is_known(config):  # its class is code from the hub, which is not run here
        return []
    whole = whole_of(config)
    base = text_model_of(config) if whole is None else whole.skeleton
    try:
        with warnings.catch_warnings(record=True), shapes_standing_in(base, on=True):
            settings = LoraConfig.from_pretrained(str(stage))
            settings.init_lora_weights, settings.inference_mode = (
                True,
                False,
            )  # weights it has none to decompose
            model = PeftModel.from_pretrained(
                base, str(stage), config=settings, low_cpu_mem_usage=True, torch_device="cpu"
            )
            loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        return [f"peft: {type(error).__name__}: {error}"[:300]]
    written = load_file(stage / WEIGHTS)
    return sorted(
        name
        for name in set(loaded) | set(written)
        if name not in loaded
        or name not in written
        or loaded[name].is_meta
        or not torch.equal(loaded[name], written[name].to(loaded[name].dtype))
    )


def base_of(reader: CheckpointReader) -> JsonObject:
    return as_object(reader.state.get("base_model"))
