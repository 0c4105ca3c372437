"""A rank reads its own part of a model from the safetensors files, and no more of them.

Only where each parameter is one tensor of the files, of the same shape, or a head drawn from the seed: what
is merged, converted or resized is made by a rank that reads the whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.models.accounting import converted_names
from paceline.models.buffers import persistent_buffers
from paceline.models.folder_tensors import FolderTensors
from paceline.models.source import cannot_load
from paceline.plan.model.stored import FLOATS
from paceline.plan.model.weights_files import header_of, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class FolderSlices:
    """``places``: a parameter or persistent buffer of the model -> its file and its name there."""

    places: Mapping[str, tuple[Path, str]]

    def has(self, name: str) -> bool:
        return name in self.places

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the block of ``shape`` at ``offsets`` in the file's dtype, on the CPU. Raises ConfigError
        ``models.cannot_load``.
        """
        from safetensors import SafetensorError, safe_open

        file, stored = self.places[name]
        try:
            with safe_open(file, framework="pt") as opened:
                whole = opened.get_slice(stored)
                if not shape:
                    return whole[...]
                return whole[tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))]
        except (OSError, SafetensorError) as error:
            raise ConfigError(cannot_load(str(file), error)) from error


def folder_slices(
    model: PreTrainedModel, tensors: FolderTensors, fresh: Collection[str] = ()
) -> FolderSlices | str:
    """Return where each parameter and persistent buffer of ``model`` (which may be on meta) is in its
    folder; or why one of them cannot be read in parts. Those of ``fresh`` that it lacks are left out.
    """
    if tensors.found.ties:  # whether they are equal is known when both are read
        return "the files hold tied weights twice"
    files = {name: file for file in weights_of(tensors.folder, []) for name in header_of(file)}
    converted = converted_names(model, tensors.stored)
    ties = dict(model.all_tied_weights_keys or {})
    aliases = {own: name for name, own in ties.items()}
    places: dict[str, tuple[Path, str]] = {}
    for name, tensor in (*model.named_parameters(), *persistent_buffers(model)):
        used = tensors.found.used
        names = used.get(name) or used.get(aliases.get(name, "")) or used.get(ties.get(name, "")) or ()
        if not names and name in fresh:
            continue
        if not names:
            return f"the files have no {name}"
        entry = tensors.stored[names[0]]
        plain = len(names) == 1 and names[0] not in converted and entry.shape == tuple(tensor.shape)
        if not plain or entry.dtype not in FLOATS:
            return f"{name} is made from other tensors of the files"
        places[name] = (files[names[0]], names[0])
    return FolderSlices(places)
