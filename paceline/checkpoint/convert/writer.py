"""Writes a foreign checkpoint as one of ours: published as every other, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.commands.verify import SingleRank
from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor
from paceline.checkpoint.convert.source_state import ForeignState
from paceline.checkpoint.export.hf_folder import ADAPTER_CONFIG
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.manifest import CONVERTED, HF_FOLDER, STATE
from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, starts_of
from paceline.checkpoint.format.strict_json import dump_object
from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.save.staging import Contents
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.plan.features.peft_settings import spec_of
from paceline.plan.plan_json import to_json
from paceline.protocols.shard import BUFFER, PARAM
from paceline.strategies.replicated_state import SCALER

_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Conversion:
    """What was written: the checkpoint, and how many tensors it has."""

    path: Path
    step: int
    num_weights: int
    num_moments: int
    num_bytes: int


def write_converted(
    state: ForeignState,
    buffers: Mapping[str, tuple[int, ...]],
    side: Mapping[str, bytes],
    folder: Path,
    to: Path,
) -> Conversion:
    """Publish ``state`` in the run directory ``to``; ``side``: files of the model, of ``folder``.

    Raises CheckpointError.
    """
    role = state.role
    entries = [
        _entry(TensorName(role, BUFFER if name in buffers else PARAM, name), tensor)
        for name, tensor in state.weights.items()
    ]
    moments = [
        _entry(TensorName(role, kind, name), tensor)
        for name, kinds in state.moments.items()
        for kind, tensor in kinds.items()
    ]
    scaler = [] if state.scaler is None else _scaler_entries(role, *state.scaler)
    written = in_order([*entries, *moments, *scaler])
    starts = starts_of(written)
    places = {e.name: (*starts[e.name], list(e.shape), [0] * len(e.shape), list(e.shape)) for e in written}
    files = {f"{HF_FOLDER}/{name}": content for name, content in side.items()}
    contents = Contents(
        written, {"format": "pt"}, places, {**files, STATE: dump_object(_state(state, folder), STATE)}
    )
    saver = Checkpointer(RunDir.at(to), SingleRank())
    with named_errors(to):
        path = saver.publish(state.step, lambda: contents)
    cost = saver.last
    assert cost is not None
    return Conversion(path, state.step, len(entries), len(moments), cost.num_bytes)


def _state(state: ForeignState, folder: Path) -> JsonObject:
    content: dict[str, Json] = {"train": {"step": state.step}, CONVERTED: state.form}
    if state.optimizer:
        content["optimizer"] = {"name": state.optimizer, "args": {}}
    if state.adapter is not None:
        content["adapter"] = to_json(spec_of(state.adapter, str(folder / ADAPTER_CONFIG)))
        base = state.adapter.get("base_model_name_or_path")
        content["base_model"] = {"name_or_path": str(base or ""), "fingerprint": "", "ties": {}}
    return content


def _entry(name: TensorName, tensor: LazyTensor) -> TensorEntry:
    dtype = torch.float32 if tensor.dtype in _NARROW else tensor.dtype  # ours are fp32 masters
    return TensorEntry(name.encode(), dtype, tensor.shape, partial(_loaded, tensor, dtype))


def _loaded(tensor: LazyTensor, dtype: torch.dtype) -> Tensor:
    return tensor.load().detach().to(dtype).contiguous()


def _scaler_entries(role: str, scale: float, tracker: int) -> list[TensorEntry]:
    scalars: dict[str, Callable[[], Tensor]] = {
        "scale": lambda: torch.tensor(scale, dtype=torch.float32),
        "growth_tracker": lambda: torch.tensor(tracker),
    }
    return [
        TensorEntry(TensorName(role, kind, SCALER).encode(), make().dtype, (), make)
        for kind, make in scalars.items()
    ]
