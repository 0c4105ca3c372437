"""Recognise the program of a foreign checkpoint, and convert it to one of ours, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.base_model_files import join_folders
from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.commands.verify import SingleRank
from paceline.checkpoint.convert.dcp import read_dcp, read_fsdp
from paceline.checkpoint.convert.deepspeed_zero import read_deepspeed, read_universal
from paceline.checkpoint.convert.hf_trainer import read_accelerate, read_trainer
from paceline.checkpoint.convert.pickle_reader.client import PickleReader
from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor, MappedFiles
from paceline.checkpoint.convert.tensor_names import (
    ForeignState,
    ModelNames,
    incomplete,
    misfit,
    model_names,
    read_config,
    role_of,
    side_files,
)
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.foreign_folders import (
    ADAPTER_CONFIG,
    FORMS,
    is_accelerate_folder,
    is_dcp_folder,
    is_deepspeed_folder,
    is_fsdp_folder,
    is_trainer_folder,
    is_universal_folder,
    weights_alone,
)
from paceline.checkpoint.format.manifest import CONVERTED, HF_FOLDER, MANIFEST, STATE
from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, starts_of
from paceline.checkpoint.format.strict_json import dump_object
from paceline.checkpoint.format.tensor_index import TensorName
from paceline.checkpoint.save.staging import Contents
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
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
        if state.base:
            content["config"] = Config.from_json({"model": {"name_or_path": state.base}}).to_json()
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


class ForeignReader(Protocol):
    """Reads a checkpoint of one form. Raises CheckpointError."""

    def __call__(
        self, folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool
    ) -> ForeignState: ...


MOST_STEPS = 10**15  # a folder's name has so many digits
#: The reader of each form; ``foreign_folders.FORMS`` has the order in which they are tried.
READERS: Mapping[Callable[[Path], bool], ForeignReader] = {
    is_dcp_folder: read_dcp,
    is_fsdp_folder: read_fsdp,
    is_universal_folder: read_universal,
    is_deepspeed_folder: read_deepspeed,
    is_trainer_folder: read_trainer,
    is_accelerate_folder: read_accelerate,
}


@dataclass(frozen=True)
class ConversionReport:
    """The result of a conversion: what was written, what was lost, and how the pickle reader was
    sandboxed."""

    written: Conversion
    form: str
    left: tuple[Diagnostic, ...]
    walls: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return the report for ``--json``."""
        written = self.written
        return {
            "form": self.form,
            "path": str(written.path),
            "step": written.step,
            "weights": written.num_weights,
            "moments": written.num_moments,
            "bytes": written.num_bytes,
            "left": [finding.what for finding in self.left],
            "walls": list(self.walls),
        }

    def as_text(self, to: str) -> str:
        """Return the report in words."""
        written = self.written
        moments = f" and {written.num_moments} of the optimizer" if written.num_moments else ""
        return (
            f"{self.form}, step {written.step}, is now {written.path}: {written.num_weights} tensors of the"
            f" model{moments}, {human_bytes(written.num_bytes)}\n"
            f"pickles were read behind: {', '.join(self.walls)}\n"
            f"go on with: paceline train CONFIG --resume {to}"
        )


def convert(
    source: Path, to: Path, *, model: Path | None = None, moments: bool = True, step: int | None = None
) -> ConversionReport:
    """Write the foreign checkpoint ``source`` as a checkpoint in the run directory ``to``.

    ``model``: the folder with the model's ``config.json`` and tokenizer, if they are elsewhere;
    ``step``: the finished steps, if the checkpoint does not record them. Raises CheckpointError.
    """
    if not source.is_dir():
        raise CheckpointError(_unknown(source, "no folder"))
    reader = next((READERS[is_one] for is_one in FORMS if is_one(source)), None)
    if reader is None:
        there = ", ".join(sorted(path.name for path in source.iterdir())[:8])
        raise CheckpointError(_unknown(source, there or "an empty folder"))
    beside = _model_folder(source) if model is None else model
    config = read_config(beside)
    names = model_names(config, beside)
    with closing(PickleReader()) as pickles:
        state = reader(source, MappedFiles(pickles), names, moments=moments)
        state.role = role_of(config, state.adapter, state.weights).value
        walls = tuple(pickles.walls)
        if step is not None:
            state = replace(state, step=step)
        if not 0 <= state.step < MOST_STEPS:
            raise misfit("the number of finished steps is none", str(source), str(state.step)[:40])
        written = write_converted(
            state, names.buffers, join_folders(side_files(beside), side_files(source)), source, to
        )
    left = tuple(codes.CONVERT_LEFT(str(source), text=text) for text in state.left)
    return ConversionReport(written, state.form, left, walls)


def _model_folder(source: Path) -> Path:
    """Return the folder with the model's config: the checkpoint's own, or one around it."""
    for folder in (source, *source.resolve().parents[:2]):
        if (folder / "config.json").is_file():
            return folder
    if (source / ADAPTER_CONFIG).is_file():
        base = Path(str(read_config(source, ADAPTER_CONFIG).get("base_model_name_or_path") or "."))
        if (base / "config.json").is_file():
            return base
    raise incomplete(
        "the checkpoint has no config.json of its model: name the folder that has it with --model",
        str(source),
    )


def _unknown(source: Path, content: str) -> Diagnostic:
    ours = (source / MANIFEST).is_file() or RunDir.at(source).checkpoints.is_dir()
    if ours:
        return codes.CONVERT_UNKNOWN(
            "this is a checkpoint of ours",
            str(source),
            content,
            "add --dcp to write it as one of torch.distributed.checkpoint",
        )
    if (wrong := weights_alone(source)) is not None:
        what, remedy = wrong
        return codes.CONVERT_UNKNOWN(what, str(source), content, remedy)
    return codes.CONVERT_UNKNOWN(
        "this is no checkpoint that can be converted",
        str(source),
        content,
        "give a checkpoint-* folder, one of Accelerate's save_state, of DeepSpeed (global_step*) or of"
        " torch.distributed.checkpoint",
    )
