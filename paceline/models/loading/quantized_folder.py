"""A folder whose weights are stored quantized, read as plain weights in bfloat16, one at a time, also where a
rank reads its own part of the model (``QuantisedFiles``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.safetensors_header import StoredTensor, header_of
from paceline.models import codes
from paceline.models.loading.dequantize import FORMULAS, plain_shape
from paceline.models.loading.loading_report import listed
from paceline.models.loading.model_source import ModelSource, raw_config, weights_folder
from paceline.models.loading.safetensors_files import OpenedFiles, StoredSlice, TensorFiles
from paceline.plan.model.files.safetensors_headers import weights_of
from paceline.plan.model.quantized_weights import PackedNames, packed_names, settings_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.models.heads.sequence_classification import Attention


@dataclass(frozen=True)
class QuantisedFolder:
    """``settings``: ``quantization_config``; ``names``: which stored tensors make a weight; ``stored``: all
    tensors, and ``files``: where they are; ``plain_bfloat16``: all other numbers are stored in bfloat16.
    """

    settings: JsonObject
    names: PackedNames
    stored: Mapping[str, StoredTensor]
    files: Mapping[str, Path]
    plain_bfloat16: bool

    def state(self, wanted: Iterable[str]) -> dict[str, Any]:
        """Return the plain tensors of these names, each read when it is indexed, as Transformers' loader does
        with tensors of files.
        """
        opened = OpenedFiles()
        return {name: _Plain(self, name, opened) for name in wanted}

    def plain(self) -> dict[str, StoredTensor]:
        """Return the plain tensors in place of the stored ones; a weight has the span of its numbers."""
        opened = OpenedFiles()
        return {name: self._plain(name, opened) for name in self.names.plain(self.stored)}

    def file_of(self, name: str) -> Path:
        """Return the file of a plain tensor, or of a quantized weight's numbers."""
        return self.files[self.names.files_of(name)[0]]

    def _plain(self, name: str, opened: TensorFiles) -> StoredTensor:
        parts = self.names.weights.get(name)
        if parts is None:
            return self.stored[name]
        numbers = self.stored[next(iter(parts.values()))]
        return replace(numbers, dtype="BF16", shape=self.shape_of(name, opened))

    def shape_of(self, name: str, opened: TensorFiles) -> tuple[int, ...]:
        """Return the shape of a quantized weight as a plain one. Raises ConfigError
        ``models.cannot_load``.
        """
        parts = self.names.weights[name]
        with _fitting(name):
            if "packed" in parts:
                rows, columns = self._stored(parts["shape"], opened).tolist()
                return int(rows), int(columns)
            return plain_shape(
                {part: self.stored[tensor].shape for part, tensor in parts.items()}, self.settings
            )

    def read(self, name: str, opened: TensorFiles, first: int = 0, end: int | None = None) -> Tensor:
        """Return a tensor under its plain name; a quantized weight in bfloat16, and of a stacked one the
        matrices ``first`` to ``end``. Raises ConfigError ``models.cannot_load``.
        """
        parts = self.names.weights.get(name)
        if parts is None:
            return self._stored(name, opened)
        shape = self.shape_of(name, opened)
        some = len(shape) > 2 and all(self.stored[tensor].shape[:1] == shape[:1] for tensor in parts.values())
        cut = slice(first, end) if some else slice(None)
        stored = {part: self._stored(tensor, opened, cut) for part, tensor in parts.items()}
        with _fitting(name):
            plain = FORMULAS[str(self.settings["quant_method"])](stored, self.settings)
            plain = plain if some else plain[first:end]
            if tuple(plain.shape) != (
                wanted := (len(range(*slice(first, end).indices(shape[0]))), *shape[1:])
            ):
                raise ValueError(f"{list(plain.shape)} in place of {list(wanted)}")
        return plain.to(torch.bfloat16)

    def _stored(self, name: str, opened: TensorFiles, cut: slice = slice(None)) -> Tensor:
        stored = opened.slice_of(self.files[name], name)
        rows = [cut.indices(n)[:2] if dim == 0 else (0, n) for dim, n in enumerate(stored.get_shape())]
        return stored[tuple(slice(*row) for row in rows)]


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """Turn errors inside about parts that do not form the weight ``name`` into ConfigError."""
    try:
        yield
    except (ValueError, RuntimeError, IndexError, KeyError, TypeError) as error:
        raise ConfigError(
            codes.MODELS_CANNOT_LOAD(
                "a quantized weight cannot be read as config.json says it is stored",
                "model.name_or_path",
                f"{name}: {(str(error) or repr(error)).splitlines()[0][:200]}",
                "use the release of this model in bfloat16",
            )
        ) from error


class QuantisedFiles(TensorFiles):
    """The files of a folder with quantized weights, as if these were plain: a weight is read whole from
    ``opened``, made plain, and cut.
    """

    def __init__(self, folder: QuantisedFolder, opened: TensorFiles | None = None) -> None:
        self._folder, self._opened = folder, opened or OpenedFiles()

    def slice_of(self, file: Path, name: str) -> StoredSlice:
        if name not in self._folder.names.weights:
            return self._opened.slice_of(file, name)
        return _Plain(self._folder, name, self._opened)

    def values_of(self, file: Path, name: str, index: Tensor) -> Tensor:
        if name not in self._folder.names.weights:
            return self._opened.values_of(file, name, index)
        return self._folder.read(name, self._opened).flatten()[index]

    def read_by(self, opened: TensorFiles) -> TensorFiles:
        return QuantisedFiles(self._folder, opened)


@dataclass(frozen=True)
class _Plain(StoredSlice):
    folder: QuantisedFolder
    name: str
    opened: TensorFiles

    def get_shape(self) -> list[int]:
        return list(self.folder.shape_of(self.name, self.opened))

    def __getitem__(self, where: tuple[slice, ...] | EllipsisType) -> Tensor:
        if where is ...:  # all of it, as Transformers' loader indexes a tensor of a file
            return self.folder.read(self.name, self.opened)
        first, end, _ = where[0].indices(self.get_shape()[0])
        return self.folder.read(self.name, self.opened, first, end)[(slice(None), *where[1:])]


def quantised_folder(model: ModelSource) -> QuantisedFolder | None:
    """Return the reader of the model's folder if its weights are stored quantized; None for plain weights."""
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
    stored = {name: entry for header in headers.values() for name, entry in header.items()}
    names = packed_names(stored, settings)
    if names.lacking:
        raise ConfigError(
            codes.MODELS_MISSING_WEIGHTS(
                "quantized weights of the checkpoint lack their scales",
                "model.name_or_path",
                f"{model.name_or_path}: {listed(names.lacking)}",
                "use a complete checkpoint",
            )
        )
    files = {name: file for file, header in headers.items() for name in header}
    return QuantisedFolder(as_object(settings), names, stored, files, names.others(stored) <= {"BF16"})


def load_dequantised(
    kind: Any,
    config: PreTrainedConfig,
    quantised: QuantisedFolder,
    wanted: Iterable[str],
    name: str,
    revision: str,
    dtype: torch.dtype,
    attention: Attention,
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
