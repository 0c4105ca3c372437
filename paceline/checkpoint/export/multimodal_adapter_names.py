"""The names of an adapter of a language model within a model with further parts: peft looks for its layers in
the class with all parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.checkpoint.export.hf_folder import ADAPTER_CONFIG, text_model_of, whole_of
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import JsonObject
from paceline.plan.features.peft_settings import alpha_of, names_module, rank_of, spec_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.models.loading.multimodal import WholeModel


@dataclass(frozen=True)
class NamesInWhole:
    """``modules``: every module of the language model -> its name in the class with all parts."""

    modules: Mapping[str, str]

    def of(self, name: str) -> str:
        """Return the name there of a module, or of something below one (a factor of an adapter)."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            if (found := self.modules.get(".".join(parts[:length]))) is not None:
                return ".".join((found, *parts[length:]))
        return name

    def settings(self, peft: JsonObject, trained: Iterable[str]) -> JsonObject:
        """Return ``adapter_config.json`` for the class with all parts. ``trained``: names of the adapter's
        tensors. Each layer is named in full, also where its rank or alpha is another: a suffix would match
        the tower's layers too, and a pattern might match none.
        """
        spec = spec_of(peft, ADAPTER_CONFIG)
        experts = tuple(str(p).rpartition(".")[0] for p in _listed(peft.get("target_parameters")))
        layers = {name.removesuffix(".lora_A.weight") for name in trained if name.endswith(".lora_A.weight")}
        targets = [
            self.of(layer)
            for layer in layers
            if not layer.removesuffix(".base_layer").endswith(experts or ("\0",))
        ]
        whole = {
            self.of(module)
            for module in self.modules
            if names_module(_listed(peft.get("modules_to_save")), module)
        }
        ranks = {self.of(one): rank_of(spec, one) for one in layers if rank_of(spec, one) != spec.r}
        alphas = {self.of(one): alpha_of(spec, one) for one in layers if alpha_of(spec, one) != spec.alpha}
        by_name: JsonObject = dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern"))
        by_name |= {"target_modules": sorted(targets), "modules_to_save": sorted(whole) or None}
        return {**peft, **by_name, "rank_pattern": {**ranks}, "alpha_pattern": {**alphas}}


def names_in_whole(reader: CheckpointReader) -> NamesInWhole | None:
    """Return the names of the checkpoint's language model within its folder's; None where it is all."""
    if "config.json" not in reader.side_files():
        return None
    where = str(reader.path / "hf" / "config.json")
    config = parse_object(reader.side_file("config.json"), where, max_bytes=MAX_CONFIG_BYTES)
    whole = whole_of(config)
    return None if whole is None else NamesInWhole(_modules(whole, text_model_of(config)))


def _modules(whole: WholeModel, text: PreTrainedModel) -> dict[str, str]:
    """Return the modules that hold a tensor, and those around them, by the names of their tensors."""
    found: dict[str, str] = {}
    for name, other in whole.names(text).items():
        mine, theirs = name.split("."), other.split(".")
        while len(mine) > 1 and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
            found[".".join(mine)] = ".".join(theirs)
    return found


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(v) for v in value] if isinstance(value, list) else []
