"""Parameters that were frozen under DeepSpeed: they are in the model's states, not among the optimizer's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint.convert.pickle_reader.torch_tensors import (
    MappedFiles,
    TensorInFile,
    TorchFile,
    refused_by_name,
)
from paceline.checkpoint.convert.pickle_reader.values import as_dict, as_shape
from paceline.checkpoint.convert.source_state import LazyTensor, misfit

MODEL_STATES = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def frozen_weights(folder: Path, files: MappedFiles, model: TorchFile, stage: int) -> dict[str, LazyTensor]:
    """Return the frozen parameters of a ``global_step*``: whole in ``model`` (stage 1: beside all others, in
    16 bits), or under stage 3 a part on each rank. Raises CheckpointError.
    """
    content = as_dict(model.content)
    shapes = dict(as_dict(content.get("frozen_param_shapes")).texts())
    if not shapes:
        return _of_module(model) if stage == 1 else {}
    holders = [model] if stage < 3 else [files.torch_file(path) for path in _by_rank(folder)]
    found = {}
    for name, stored in shapes.items():
        with refused_by_name(model.where):
            shape = as_shape(stored)
        found[name] = _joined(name, shape, holders)
    return found


def _of_module(model: TorchFile) -> dict[str, LazyTensor]:
    """Return what the module's state dict holds."""
    tensors = {
        name: model.tensor(value) for name, value in as_dict(as_dict(model.content).get("module")).texts()
    }
    return {name: LazyTensor.stored(one, model.where) for name, one in tensors.items() if one is not None}


def _by_rank(folder: Path) -> list[Path]:
    found = {}
    for path in folder.iterdir():
        if (match := MODEL_STATES.fullmatch(path.name)) is not None:
            found[int(match[1] or 0)] = path
    return [found[rank] for rank in sorted(found)]


def _joined(name: str, shape: tuple[int, ...], holders: Sequence[TorchFile]) -> LazyTensor:
    parts = []
    for file in holders:
        part = file.tensor(as_dict(as_dict(file.content).get("frozen_param_fragments")).get(name))
        if part is None:
            raise misfit("a frozen parameter has no values", file.where, name)
        parts.append(part)
    if sum(prod(part.shape) for part in parts) < prod(shape):
        found = f"{name}: {[part.shape for part in parts]} of {shape}"
        raise misfit("the parts of a frozen parameter are shorter than it", holders[0].where, found)
    return LazyTensor(parts[0].dtype, shape, partial(_load, tuple(parts), shape, holders[0].where))


def _load(parts: tuple[TensorInFile, ...], shape: tuple[int, ...], where: str) -> Tensor:
    with refused_by_name(where):
        flat = torch.cat([part.load().reshape(-1) for part in parts])
    return flat[: prod(shape)].view(shape)
