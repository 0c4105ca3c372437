"""A folder whose weights are stored quantized, read as plain weights in bfloat16, one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject, as_object
from paceline.models import codes
from paceline.models.accounting import listed
from paceline.models.dequantise import formula_of
from paceline.models.source import ModelSource, raw_config
from paceline.models.stored_dtype import weights_folder
from paceline.plan.model.quantised_base import settings_of
from paceline.plan.model.quantised_names import PackedNames, packed_names
from paceline.plan.model.weights_files import header_of, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class QuantisedFolder:
    """``settings``: ``quantization_config``; ``names``: which stored tensors make a weight; ``files``: where
    they are; ``plain_bfloat16``: all other numbers are stored in bfloat16.
    """

    settings: JsonObject
    names: PackedNames
    files: Mapping[str, Path]
    plain_bfloat16: bool

    def state(self, wanted: Iterable[str]) -> dict[str, Any]:
        """Return the plain tensors of these names, each read when it is indexed, as Transformers' loader does
        with tensors of files.
        """
        opened: dict[Path, Any] = {}
        return {name: _Unread(self, name, opened) for name in wanted}

    def read(self, name: str, opened: dict[Path, Any]) -> Tensor:
        """Return a tensor under its plain name; a quantized weight in bfloat16. Raises ConfigError
        ``models.cannot_load``.
        """
        parts = self.names.weights.get(name)
        if parts is None:
            return self._stored(name, opened)
        stored = {what: self._stored(one, opened) for what, one in parts.items()}
        try:
            found = formula_of(self.settings)(stored, self.settings)
        except (ValueError, RuntimeError, IndexError, KeyError) as error:
            raise ConfigError(_misfit(name, str(error))) from error
        return found.to(torch.bfloat16)

    def _stored(self, name: str, opened: dict[Path, Any]) -> Tensor:
        from safetensors import safe_open

        file = self.files[name]
        if file not in opened:
            opened[file] = safe_open(file, "pt")
        tensor: Tensor = opened[file].get_tensor(name)
        return tensor


@dataclass(frozen=True)
class _Unread:
    folder: QuantisedFolder
    name: str
    opened: dict[Path, Any]

    def __getitem__(self, _: EllipsisType) -> Tensor:
        return self.folder.read(self.name, self.opened)


def quantised_folder(model: ModelSource) -> QuantisedFolder | None:
    """Return how the model's folder is read if its weights are stored quantized; None for plain weights."""
    if model.config is not None or model.name_or_path is None:
        return None
    settings = settings_of(raw_config(model))
    if settings is None:
        return None
    try:
        folder = weights_folder(model.name_or_path, model.revision)
        headers = {file: header_of(file) for file in weights_of(folder, [])}
    except (OSError, ValueError):  # the load says why
        return None
    stored = {name: entry for found in headers.values() for name, entry in found.items()}
    names = packed_names(stored, settings)
    if names.lacking:
        raise ConfigError(_lacking(model.name_or_path, names.lacking))
    files = {name: file for file, found in headers.items() for name in found}
    return QuantisedFolder(as_object(settings), names, files, names.others(stored) <= {"BF16"})


def load_dequantised(
    kind: Any,
    config: PreTrainedConfig,
    quantised: QuantisedFolder,
    wanted: Iterable[str],
    name: str,
    revision: str,
    dtype: torch.dtype,
    attention: str | None,
) -> tuple[Any, Mapping[str, Collection[str]]]:
    """Load the class ``kind`` from the tensors ``wanted`` of a quantized folder; return it and what
    Transformers missed.
    """
    from transformers import GenerationConfig

    how = {} if attention is None else {"attn_implementation": attention}
    hf, info = kind.from_pretrained(
        None, config=config, state_dict=quantised.state(wanted), dtype=dtype, output_loading_info=True, **how
    )
    with suppress(OSError):  # a folder may have none
        hf.generation_config = GenerationConfig.from_pretrained(name, revision=revision)
    return hf, info


def _lacking(where: str, names: tuple[str, ...]) -> Diagnostic:
    return codes.MODELS_MISSING_WEIGHTS(
        "quantized weights of the checkpoint lack their scales",
        "model.name_or_path",
        f"{where}: {listed(names)}",
        "use a complete checkpoint",
    )


def _misfit(name: str, error: str) -> Diagnostic:
    return codes.MODELS_CANNOT_LOAD(
        "a quantized weight cannot be read as config.json says it is stored",
        "model.name_or_path",
        f"{name}: {error.splitlines()[0][:200]}",
        "use the release of this model in bfloat16",
    )
