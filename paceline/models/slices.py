"""A rank reads its own part of a model from the safetensors files, and no more of them.

Only where each parameter is one tensor of the files, or a head drawn from the seed, or has new rows beside
those of the files: what is merged or converted is made by a rank that reads the whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.models.accounting import converted_names
from paceline.models.buffers import persistent_buffers
from paceline.models.folder_tensors import FolderTensors
from paceline.models.new_rows import new_rows
from paceline.models.source import cannot_load
from paceline.plan.model.stored import FLOATS
from paceline.plan.model.weights_files import header_of, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FolderSlices:
    """``places``: a parameter or persistent buffer of the model -> its file and its name there; ``grown``:
    one with more rows than it has there -> its shapes there and in the model; ``more``: these rows.
    """

    places: Mapping[str, tuple[Path, str]]
    grown: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)
    more: dict[str, Tensor] = field(default_factory=dict)

    def grow(self, seed: int) -> None:
        """Make the rows of ``more``: one such parameter after the other is read, some columns at a time."""
        generator = torch.Generator().manual_seed(seed)
        for name, (old, new) in self.grown.items():
            if len(old) == 1:
                self.more[name] = self._stored(name, (0,), old).float().mean().expand(new[0] - old[0])
                continue

            def columns(first: int, number: int, name: str = name, rows: int = old[0]) -> Tensor:
                return self._stored(name, (0, first), (rows, number))

            self.more[name] = new_rows(columns, new[0] - old[0], old[1], generator)

    def has(self, name: str) -> bool:
        return name in self.places

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the block of ``shape`` at ``offsets`` on the CPU, in the file's dtype (fp32 with rows of
        ``more``). Raises ConfigError ``models.cannot_load``.
        """
        if name not in self.grown:
            return self._stored(name, offsets, shape)
        old = self.grown[name][0][0]
        first, end = offsets[0], offsets[0] + shape[0]
        columns = tuple(slice(o, o + n) for o, n in zip(offsets[1:], shape[1:], strict=True))
        parts = [self.more[name][(slice(max(first - old, 0), max(end - old, 0)), *columns)]]
        if first < old:
            parts.insert(0, self._stored(name, offsets, (min(end, old) - first, *shape[1:])).float())
        return torch.cat(parts)

    def _stored(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a block of the tensor in the files."""
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
    model: PreTrainedModel,
    tensors: FolderTensors,
    fresh: Collection[str] = (),
    growing: Collection[str] = (),
) -> FolderSlices | str:
    """Return where each parameter and persistent buffer of ``model`` (which may be on meta) is in its
    folder; or why one of them cannot be read in parts. Those of ``fresh`` that it lacks are left out, those
    of ``growing`` may have fewer rows there.
    """
    if tensors.found.ties:  # whether they are equal is known when both are read
        return "the files hold tied weights twice"
    files = {name: file for file in weights_of(tensors.folder, []) for name in header_of(file)}
    converted = converted_names(model, tensors.stored)
    ties = dict(model.all_tied_weights_keys or {})
    aliases = {own: name for name, own in ties.items()}
    places: dict[str, tuple[Path, str]] = {}
    grown: dict[str, tuple[Shape, Shape]] = {}
    for name, tensor in (*model.named_parameters(), *persistent_buffers(model)):
        used = tensors.found.used
        names = used.get(name) or used.get(aliases.get(name, "")) or used.get(ties.get(name, "")) or ()
        if not names and name in fresh:
            continue
        if not names:
            return f"the files have no {name}"
        entry = tensors.stored[names[0]]
        shape = tuple(tensor.shape)
        if name in growing and entry.shape[0] < shape[0]:
            grown[name] = (entry.shape, shape)
            shape = (entry.shape[0], *shape[1:])
        plain = len(names) == 1 and names[0] not in converted and entry.shape == shape
        if not plain or entry.dtype not in FLOATS:
            return f"{name} is made from other tensors of the files"
        places[name] = (files[names[0]], names[0])
    return FolderSlices(places, {name: grown[name] for name in growing if name in grown})
