"""Export an adapter's checkpoint as a peft folder.

For the language model of a composite model, peft looks up the layers in the class with all parts.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint import codes
from paceline.checkpoint.export.architecture import is_known, trained_model_of, whole_of, with_tower
from paceline.checkpoint.export.hf_folder import config_of, write_kept
from paceline.checkpoint.export.reload_check import different_as_stored
from paceline.checkpoint.export.untrained_tensors import FolderReads, places_in
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject, as_object
from paceline.models.lora.names import WEIGHTS, adapted_modules, peft_key
from paceline.models.module_tensors import shapes_standing_in
from paceline.plan.features.peft_settings import alpha_of, names_module, rank_of, spec_of

_OF_WHOLE_MODELS = ("config.json", "generation_config.json")


def is_adapter(reader: CheckpointReader) -> bool:
    """Whether the checkpoint holds an adapter, not a full model."""
    return ADAPTER_CONFIG in reader.side_files()


def adapter_entries(
    reader: CheckpointReader, entries: list[TensorEntry], names: NamesInWhole | None
) -> list[TensorEntry]:
    """Rename the tensors to the keys of peft's file.

    A tied weight that was trained is written under both its names, as peft expects. ``names``: set if the
    language model is a part of its folder's model.
    """
    adapted = adapted_modules(e.name for e in entries)
    ties = as_object(base_of(reader).get("ties"))
    with_ties = entries + [
        replace(e, name=other) for e in entries for other, trained in ties.items() if trained == e.name
    ]
    if names is None:
        return [replace(e, name=peft_key(e.name, adapted)) for e in with_ties]
    adapted = frozenset(map(names.of, adapted))
    return [replace(e, name=peft_key(names.of(e.name), adapted)) for e in with_ties]


def write_adapter_files(
    stage: Path, reader: CheckpointReader, trained: Iterable[str], names: NamesInWhole | None
) -> None:
    """Write ``adapter_config.json`` and the tokenizer's files; ``trained``: the names of its tensors in the
    checkpoint.
    """
    files = {name: reader.side_file(name) for name in reader.side_files() if name not in _OF_WHOLE_MODELS}
    if names is not None:
        settings = names.settings(reader.side_json(ADAPTER_CONFIG), trained)
        files[ADAPTER_CONFIG] = json.dumps(settings, indent=2).encode()
    write_kept(stage, files)


def check_adapter(stage: Path, entries: list[TensorEntry], reader: CheckpointReader) -> None:
    """Compare every tensor of the folder, and have peft load it. Raises CheckpointError."""
    stored = places_in(stage / WEIGHTS, stage)
    wrong = sorted({e.name for e in entries} ^ set(stored))
    with FolderReads() as files:
        wrong += different_as_stored([e for e in entries if e.name in stored], stored, files)
    if wrong := wrong or _peft_misses(stage, reader):
        raise CheckpointError(
            codes.EXPORT_LOAD_CHECK(
                "peft loads other weights than were written; the export was removed",
                str(reader.path),
                ", ".join(wrong[:5]),
            )
        )


def _peft_misses(stage: Path, reader: CheckpointReader) -> list[str]:
    """Return peft's errors when it loads the folder on its base without storage."""
    from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    config = config_of(reader, "float32")
    if not is_known(config):  # its class is code from the hub, which is not run here
        return []
    vision = with_tower(reader.state)
    composite = whole_of(config, vision)
    base = trained_model_of(config, vision) if composite is None else composite.skeleton
    try:
        with warnings.catch_warnings(record=True), shapes_standing_in(base, on=True):
            settings = PeftConfig.from_pretrained(str(stage))
            settings.inference_mode = False
            if isinstance(settings, LoraConfig):
                settings.init_lora_weights = True  # weights it has none to decompose
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


if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.models.loading.multimodal import WholeModel


@dataclass(frozen=True)
class NamesInWhole:
    """``modules``: every module of the language model -> its name in the class with all parts."""

    modules: Mapping[str, str]

    def of(self, name: str) -> str:
        """Return the full class's name of a module, or of something inside one (a factor of an adapter)."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            if (inner := self.modules.get(".".join(parts[:length]))) is not None:
                return ".".join((inner, *parts[length:]))
        return name

    def settings(self, peft: JsonObject, trained: Iterable[str]) -> JsonObject:
        """Return ``adapter_config.json`` for the class with all parts. ``trained``: names of the adapter's
        tensors. The config has the full name of each layer, also where its rank or alpha differs. A suffix
        would match the tower's layers too, and a pattern might match none.
        """
        spec = spec_of(peft, ADAPTER_CONFIG)
        experts = tuple(str(p).rpartition(".")[0] for p in _listed(peft.get("target_parameters")))
        layers = adapted_modules(iter(trained))
        targets = [
            self.of(layer)
            for layer in layers
            if not layer.removesuffix(".base_layer").endswith(experts or ("\0",))
        ]
        full_modules = {
            self.of(module)
            for module in self.modules
            if names_module(_listed(peft.get("modules_to_save")), module)
        }
        ranks = {
            self.of(target): rank_of(spec, target) for target in layers if rank_of(spec, target) != spec.r
        }
        alphas = {
            self.of(target): alpha_of(spec, target)
            for target in layers
            if alpha_of(spec, target) != spec.alpha
        }
        by_name: JsonObject = dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern"))
        by_name |= {"target_modules": sorted(targets), "modules_to_save": sorted(full_modules) or None}
        if spec.oft_block_size:
            return {**peft, **by_name}
        return {**peft, **by_name, "rank_pattern": {**ranks}, "alpha_pattern": {**alphas}}


def names_in_whole(reader: CheckpointReader) -> NamesInWhole | None:
    """Return the names of the checkpoint's language model within its folder's; None where it is all."""
    if "config.json" not in reader.side_files():
        return None
    config = reader.side_json("config.json")
    composite = whole_of(config, with_tower(reader.state))
    return None if composite is None else NamesInWhole(_modules(composite, trained_model_of(config)))


def _modules(composite: WholeModel, text: PreTrainedModel) -> dict[str, str]:
    """Return the modules that hold a tensor, and those around them, by the names of their tensors."""
    modules: dict[str, str] = {}
    for name, other in composite.names(text).items():
        mine, theirs = name.split("."), other.split(".")
        while len(mine) > 1 and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
            modules[".".join(mine)] = ".".join(theirs)
    return modules


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(v) for v in value] if isinstance(value, list) else []
