"""DeepSpeed's ``global_step*`` of ZeRO stages 1, 2 and 3: fp32 masters and Adam's moments, flat and in parts.

Stages 1 and 2 keep a group's parameters one after another in one flat tensor, cut into as many parts as there
are ranks; stage 3 cuts each parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint.convert.adapter import adapter_state, is_adapter
from paceline.checkpoint.convert.deepspeed_frozen import MODEL_STATES, frozen_weights
from paceline.checkpoint.convert.hf_trainer import (
    ADAPTER_CONFIG,
    WITHOUT,
    check_adam,
    is_trainer_folder,
    left_of,
    place_of,
)
from paceline.checkpoint.convert.pickle_reader.torch_tensors import (
    MappedFiles,
    TensorInFile,
    TorchFile,
    refused,
    refused_by_name,
)
from paceline.checkpoint.convert.pickle_reader.values import (
    PickledCall,
    PickledDict,
    Value,
    as_dict,
    as_list,
    as_shape,
)
from paceline.checkpoint.convert.source_state import (
    ADAM,
    ForeignState,
    LazyTensor,
    Moments,
    incomplete,
    misfit,
)
from paceline.checkpoint.convert.tensor_names import ModelNames, adapter_name, by_model, unwrapped
from paceline.core.files import read_text

_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "fp32"


@dataclass(frozen=True)
class FlatParts:
    """Flat tensors of files, one after another."""

    parts: tuple[TensorInFile, ...]
    where: str

    @property
    def numel(self) -> int:
        return sum(prod(part.shape) for part in self.parts)

    def read(self, start: int, count: int) -> Tensor:
        """Return elements ``[start, start + count)``."""
        found, at = [], 0
        with refused_by_name(self.where):
            for part in self.parts:
                size = prod(part.shape)
                low, high = max(start, at), min(start + count, at + size)
                if low < high:
                    found.append(part.load().reshape(-1)[low - at : high - at])
                at += size
        return found[0] if len(found) == 1 else torch.cat(found)


@dataclass(frozen=True)
class RankState:
    """What one rank saved: ``flats`` by kind (``fp32``, ``exp_avg``, …), one of each group."""

    flats: dict[str, list[TensorInFile]]
    step: float | None
    paddings: list[list[int]]
    stage: int
    count: int | None
    where: str


def deepspeed_folder(folder: Path) -> Path | None:
    """Return the folder of the step: itself, or the one that ``latest`` names; None if it is another's."""
    try:
        if any(_OPTIMIZER.fullmatch(path.name) for path in folder.iterdir()):
            return folder
        tag = read_text(folder / "latest")[:200].strip()
    except (OSError, UnicodeDecodeError):
        return None
    inner = folder / tag
    return inner if _TAG.fullmatch(tag) and inner.is_dir() else None


def is_deepspeed_folder(folder: Path) -> bool:
    """Whether a folder is, or names, a checkpoint of DeepSpeed's ZeRO."""
    inner = deepspeed_folder(folder)
    return inner is not None and any(_OPTIMIZER.fullmatch(path.name) for path in inner.iterdir())


def read_deepspeed(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what DeepSpeed saved. Raises CheckpointError."""
    inner = deepspeed_folder(folder)
    assert inner is not None
    model = _model_states(inner, files)
    ranks = [_rank(files.torch_file(path)) for path in _of_ranks(inner)]
    shapes = [
        dict(_shapes(as_dict(group), model.where))
        for group in as_list(as_dict(model.content).get("param_shapes"))
    ]
    if not shapes:
        raise incomplete("the model's states do not say which parameters there are", model.where)
    stage = ranks[0].stage
    if any(rank.stage != stage for rank in ranks):
        raise misfit("ranks saved other stages of ZeRO", str(inner), str([rank.stage for rank in ranks]))
    if ranks[0].count not in (None, len(ranks)):
        raise incomplete("files of ranks are missing", str(inner), f"{len(ranks)} of {ranks[0].count}")
    place = _places_3 if stage == 3 else _places_12
    masters = place(ranks, MASTER, shapes)
    form = f"a checkpoint of DeepSpeed (ZeRO-{stage})"
    if is_adapter(masters):
        at = inner if (inner / ADAPTER_CONFIG).is_file() else folder
        state, trained, _ = adapter_state(masters, masters, at, names, form)
    else:
        weights = {**frozen_weights(inner, files, model, stage), **masters, **_beside(model)}
        _need_frozen(weights, names, inner)
        state, trained = ForeignState(form, 0, by_model(weights, names, str(inner))), dict(names.parameters)
    steps = as_dict(model.content).get("global_steps")
    state.step = steps if isinstance(steps, int) else 0
    if moments:
        state.moments = _moments(ranks, shapes, trained, stage)
        state.optimizer = ADAM
        if frozen := [name for name in trained if name not in state.moments]:
            some = ", ".join(frozen[:5]) + (f" and {len(frozen) - 5} more" if len(frozen) > 5 else "")
            what = "parameters were frozen, so the optimizer has no moments of them; here all are trained"
            hint = "use --weights-only: weights go on, all with new moments"
            raise misfit(what, str(inner), some, hint)
    if is_trainer_folder(folder):
        state.step = place_of(folder)
        state.left += left_of(folder)
    state.left += [
        "the learning rate's scheduler and client state: set schedule, warm-up and max_steps as they were",
        "the loss scale of fp16: it begins anew",
    ]
    return state


def _need_frozen(weights: Mapping[str, LazyTensor], names: ModelNames, folder: Path) -> None:
    """Raise CheckpointError if parameters that were frozen are not in the checkpoint."""
    plain = unwrapped(weights, set(names.parameters))
    missing = [name for name in names.parameters if name not in plain]
    if missing and len(missing) < len(names.parameters):
        some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        what = "parameters are missing: frozen ones, if it was saved with exclude_frozen_parameters"
        hint = (
            "save it again with exclude_frozen_parameters=False; or set model.name_or_path to a folder that"
        )
        raise misfit(what, str(folder), some, f"{hint} has all weights, for a new run")


def _model_states(folder: Path, files: MappedFiles) -> TorchFile:
    found = sorted(path for path in folder.iterdir() if MODEL_STATES.fullmatch(path.name))
    if not found:
        raise incomplete("the folder has no *_model_states.pt", str(folder))
    return files.torch_file(found[0])


def _of_ranks(folder: Path) -> list[Path]:
    """Return the optimizer's files by rank. Raises CheckpointError unless they are all there."""
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if (match := _OPTIMIZER.fullmatch(path.name)) is not None:
            if int(match[2]):
                what = "the model is cut over several ranks (tensor or pipeline parallelism)"
                raise misfit(what, str(path), path.name, "make it universal first: ds_to_universal.py")
            found[int(match[1])] = path
    if sorted(found) != list(range(len(found))):
        missing = sorted(set(range(max(found))) - set(found))
        raise incomplete("files of ranks are missing", str(folder), f"ranks {missing[:8]}")
    return [found[rank] for rank in sorted(found)]


def _rank(file: TorchFile) -> RankState:
    """Return what a rank's file holds. Raises CheckpointError."""
    saved = as_dict(as_dict(file.content).get("optimizer_state_dict"))
    stage = saved.get("zero_stage")
    number = stage.args[0] if isinstance(stage, PickledCall) and stage.args else stage
    if not isinstance(number, int) or number not in (1, 2, 3):
        raise misfit("the file is of no stage of ZeRO", file.where, str(number)[:40])
    if saved.get("ds_zero_partition_groups") is not None:
        what = "parameters are cut over groups of ranks of their own (MiCS, experts)"
        raise misfit(what, file.where, "ds_zero_partition_groups", "make it universal first")
    given = saved.get("fp32_flat_groups" if number == 3 else "single_partition_of_fp32_groups")
    flats = {MASTER: [_flat(file, one) for one in as_list(given)]}
    base = saved.get("optimizer_state_dict" if number == 3 else "base_optimizer_state")
    groups = _states_of(base)
    for kind in _MOMENTS:
        flats[kind] = [_flat(file, group.get(kind)) for group in groups if group.get(kind) is not None]
    paddings = [
        [n for n in as_list(one) if isinstance(n, int)]
        for one in as_list(saved.get("param_alignment_paddings"))
    ]
    count = _number(saved.get("partition_count"))
    return RankState(flats, _step(file, saved, base, groups), paddings, number, count, file.where)


def _states_of(base: Value) -> list[PickledDict]:
    """Return the optimizer's state of each group: a list, or a state dict with numbers."""
    if isinstance(base, list):
        return [as_dict(one) for one in base]
    return [
        as_dict(one) for _, one in sorted(as_dict(as_dict(base).get("state")).numbers(), key=lambda p: p[0])
    ]


def _step(file: TorchFile, saved: PickledDict, base: Value, groups: Sequence[PickledDict]) -> float | None:
    """Return the optimizer's step: of a state, or of a group."""
    in_groups = [as_dict(g).get("step") for g in as_list(as_dict(base).get("param_groups"))]
    for value in (
        *(group.get("step") for group in groups),
        *in_groups,
        saved.get("base_optimizer_state_step"),
    ):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if (tensor := file.tensor(value)) is not None and prod(tensor.shape) == 1:
            with refused_by_name(file.where):
                return float(tensor.load())
    return None


def _number(value: Value) -> int | None:
    first = as_list(value)[0] if as_list(value) else value
    return first if isinstance(first, int) else None


def _flat(file: TorchFile, value: Value) -> TensorInFile:
    found = file.tensor(value)
    if found is None or len(found.shape) != 1:
        raise refused(file.where, "a flat group that is no flat tensor")
    return found


def _shapes(group: PickledDict, where: str) -> list[tuple[str, tuple[int, ...]]]:
    with refused_by_name(where):
        return [(name, as_shape(shape)) for name, shape in group.texts()]


_Shapes = Sequence[dict[str, tuple[int, ...]]]


def _places_12(ranks: Sequence[RankState], kind: str, shapes: _Shapes) -> dict[str, LazyTensor]:
    """Return each parameter's tensor of a kind, under stage 1 or 2."""
    found: dict[str, LazyTensor] = {}
    for number, group in enumerate(shapes):
        if any(number >= len(rank.flats[kind]) for rank in ranks):
            raise incomplete(f"a group has no {kind}", ranks[0].where, f"group {number} of {len(shapes)}")
        flat = FlatParts(tuple(rank.flats[kind][number] for rank in ranks), ranks[0].where)
        paddings = ranks[0].paddings[number] if number < len(ranks[0].paddings) else []
        if paddings and len(paddings) != len(group):
            raise misfit("a group has paddings of another number of parameters", ranks[0].where, str(number))
        at = 0
        for place, (name, shape) in enumerate(group.items()):
            found[name] = _lazy(flat, at, shape)
            at += prod(shape) + (paddings[place] if paddings else 0)
        at -= paddings[-1] if paddings else 0
        if not at <= flat.numel:
            what = f"the ranks' parts of {kind} are shorter than the parameters of their group"
            raise misfit(what, ranks[0].where, f"{flat.numel} elements, {at} are needed")
    return found


def _lazy(flat: FlatParts, at: int, shape: tuple[int, ...]) -> LazyTensor:
    return LazyTensor(flat.parts[0].dtype, shape, partial(_cut, flat, at, shape))


def _cut(flat: FlatParts, at: int, shape: tuple[int, ...]) -> Tensor:
    return flat.read(at, prod(shape)).view(shape)


def _places_3(ranks: Sequence[RankState], kind: str, shapes: _Shapes) -> dict[str, LazyTensor]:
    """Return each parameter's tensor of a kind, under stage 3: every rank has a part of it."""
    flats = [FlatParts(tuple(rank.flats[kind]), rank.where) for rank in ranks]
    found: dict[str, LazyTensor] = {}
    at = 0
    for group in shapes:
        for name, shape in group.items():
            part = -(-prod(shape) // len(ranks))
            dtype = ranks[0].flats[kind][0].dtype if ranks[0].flats[kind] else torch.float32
            found[name] = LazyTensor(dtype, shape, partial(_gather, flats, at, part, shape))
            at += part
    for flat in flats:
        if flat.numel < at:
            what = f"a rank's part of {kind} is shorter than the parameters"
            raise misfit(what, flat.where, f"{flat.numel} elements, {at} are needed")
    return found


def _gather(flats: Sequence[FlatParts], at: int, part: int, shape: tuple[int, ...]) -> Tensor:
    return torch.cat([flat.read(at, part) for flat in flats])[: prod(shape)].view(shape)


def _moments(
    ranks: Sequence[RankState], shapes: _Shapes, trained: Mapping[str, tuple[int, ...]], stage: int
) -> Moments:
    place = _places_3 if stage == 3 else _places_12
    by_kind = {}
    for kind in _MOMENTS:
        by_name = place(ranks, kind, shapes)
        if is_adapter(by_name):
            by_name = {adapter_name(name): tensor for name, tensor in by_name.items()}
        by_kind[kind] = unwrapped(by_name, set(trained))
    step, where = ranks[0].step, ranks[0].where
    if step is None:
        raise misfit("the optimizer's state has no step: it is not Adam's", where, "", WITHOUT)
    found: Moments = {}
    for name, shape in trained.items():
        if all(name in one for one in by_kind.values()):
            found[name] = {kind: by_kind[kind][name] for kind in _MOMENTS} | {"step": LazyTensor.number(step)}
            check_adam(found[name], name, shape, where)
    return found


def _beside(model: TorchFile) -> dict[str, LazyTensor]:
    """Return buffers, which every rank has whole."""
    content = as_dict(model.content)
    module = as_dict(content.get("module"))
    found = {}
    for name in as_list(content.get("buffer_names")):
        tensor = model.tensor(module.get(name)) if isinstance(name, str) else None
        if tensor is not None and isinstance(name, str):
            found[name] = LazyTensor.stored(tensor, model.where)
    return found
