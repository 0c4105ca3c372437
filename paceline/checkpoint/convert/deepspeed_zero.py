"""DeepSpeed's checkpoints, with fp32 masters and Adam's moments: ZeRO's and universal ones.

A ``global_step*`` of ZeRO has them flat and in parts; a universal checkpoint has whole tensors, one folder
per parameter.

Stages 1 and 2 keep a group's parameters in turn in one flat tensor, cut into as many parts as there are
ranks. Stage 3 cuts each parameter. Parameters that were frozen are in the model's states, not among the
optimizer's.
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

from paceline.checkpoint.convert.hf_trainer import (
    WITHOUT,
    check_adam,
    left_of,
    trainer_step,
)
from paceline.checkpoint.convert.pickle_reader.torch_tensors import (
    LazyTensor,
    MappedFiles,
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
from paceline.checkpoint.convert.tensor_names import (
    ADAM,
    SCHEDULER,
    ForeignState,
    ModelNames,
    Moments,
    adapter_name,
    adapter_state,
    incomplete,
    is_adapter,
    misfit,
    model_state,
    some_of,
    unwrapped,
)
from paceline.checkpoint.format.foreign_folders import (
    ADAPTER_CONFIG,
    ZERO,
    ZERO_MASTER,
    ZERO_OPTIMIZER,
    deepspeed_folder,
    is_trainer_folder,
)

_MODEL_STATES = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class FlatParts:
    """Flat tensors of files, one after another."""

    parts: tuple[LazyTensor, ...]
    where: str

    @property
    def numel(self) -> int:
        return sum(prod(part.shape) for part in self.parts)

    def read(self, start: int, count: int) -> Tensor:
        """Return elements ``[start, start + count)``."""
        pieces, begin = [], 0
        for part in self.parts:
            size = prod(part.shape)
            low, high = max(start, begin), min(start + count, begin + size)
            if low < high:
                pieces.append(part.load().reshape(-1)[low - begin : high - begin])
            begin += size
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def lazy(self, start: int, shape: tuple[int, ...]) -> LazyTensor:
        """Return the tensor of ``shape`` whose elements begin at ``start``."""
        return LazyTensor(self.parts[0].dtype, shape, lambda: self.read(start, prod(shape)).view(shape))


@dataclass(frozen=True)
class RankState:
    """What one rank saved: ``flats`` by kind (``fp32``, ``exp_avg``, …), one of each group."""

    flats: dict[str, list[LazyTensor]]
    step: float | None
    paddings: list[list[int]]
    stage: int
    count: int | None
    where: str


def read_deepspeed(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return the state that DeepSpeed saved. Raises CheckpointError."""
    inner = deepspeed_folder(folder)
    assert inner is not None
    states = min((path for path in inner.iterdir() if _MODEL_STATES.fullmatch(path.name)), default=None)
    if states is None:
        raise incomplete("the folder has no *_model_states.pt", str(inner))
    model = files.torch_file(states)
    ranks = [_rank(files.torch_file(path)) for path in _by_rank(inner, ZERO_OPTIMIZER)]
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
    tensors_of = _places_3 if stage == 3 else _places_12
    masters = tensors_of(ranks, ZERO_MASTER, shapes)
    form = f"a checkpoint of DeepSpeed (ZeRO-{stage})"
    if is_adapter(masters):
        beside = inner if (inner / ADAPTER_CONFIG).is_file() else folder
        state = adapter_state(masters, masters, beside, names, form)
    else:
        buffers = as_list(as_dict(model.content).get("buffer_names"))  # which every rank has whole
        weights = {**_frozen(inner, files, model, stage), **masters, **_of_module(model, buffers)}
        _need_frozen(weights, names, inner)
        state = model_state(form, weights, names, str(inner))
    steps = as_dict(model.content).get("global_steps")
    state.step = steps if isinstance(steps, int) else 0
    if moments:
        state.moments = _moments(ranks, shapes, state.trained, stage)
        state.optimizer = ADAM
        if frozen := [name for name in state.trained if name not in state.moments]:
            raise misfit(
                "parameters were frozen, so the optimizer has no moments of them; here all are trained",
                str(inner),
                some_of(frozen),
                "use --weights-only: weights go on, all with new moments",
            )
    if is_trainer_folder(folder):
        state.step = trainer_step(folder)
        state.left += left_of(folder)
    state.left += [SCHEDULER, "the loss scale of fp16: it begins anew"]
    return state


def _need_frozen(weights: Mapping[str, LazyTensor], names: ModelNames, folder: Path) -> None:
    """Raise CheckpointError if parameters that were frozen are not in the checkpoint."""
    plain = unwrapped(weights, set(names.parameters))
    missing = [name for name in names.parameters if name not in plain]
    if missing and len(missing) < len(names.parameters):
        raise misfit(
            "parameters are missing: frozen ones, if it was saved with exclude_frozen_parameters",
            str(folder),
            some_of(missing),
            "save it again with exclude_frozen_parameters=False; or set model.name_or_path to a folder"
            " that has all weights, for a new run",
        )


def _frozen(folder: Path, files: MappedFiles, model: TorchFile, stage: int) -> dict[str, LazyTensor]:
    """Return the frozen parameters of a ``global_step*`` folder. ``model`` holds them whole (at stage 1 next
    to all others, in 16 bits); under stage 3 each rank's file holds a part. Raises CheckpointError.
    """
    with refused_by_name(model.where):
        saved = as_dict(as_dict(model.content).get("frozen_param_shapes")).texts()
        shapes = {name: as_shape(shape) for name, shape in saved}
    if not shapes:
        return _of_module(model) if stage == 1 else {}
    holders = [model] if stage < 3 else [files.torch_file(path) for path in _by_rank(folder, _MODEL_STATES)]
    return {name: _joined(name, shape, holders) for name, shape in shapes.items()}


def _joined(name: str, shape: tuple[int, ...], holders: Sequence[TorchFile]) -> LazyTensor:
    parts = []
    for file in holders:
        part = file.tensor(as_dict(as_dict(file.content).get("frozen_param_fragments")).get(name))
        if part is None:
            raise misfit("a frozen parameter has no values", file.where, name)
        parts.append(part)
    flat = FlatParts(tuple(parts), holders[0].where)
    if flat.numel < prod(shape):
        raise misfit(
            "the parts of a frozen parameter are shorter than it",
            flat.where,
            f"{name}: {[part.shape for part in parts]} of {shape}",
        )
    return flat.lazy(0, shape)


def _of_module(model: TorchFile, only: Sequence[Value] | None = None) -> dict[str, LazyTensor]:
    """Return the tensors of the module's state dict: all, or those with these names."""
    values = as_dict(as_dict(model.content).get("module")).texts()
    wanted = ((name, value) for name, value in values if only is None or name in only)
    return {name: tensor for name, value in wanted if (tensor := model.tensor(value)) is not None}


def _by_rank(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the files of a kind by rank. Raises CheckpointError unless they are all there."""
    matches = {path: match for path in folder.iterdir() if (match := names.fullmatch(path.name)) is not None}
    if cut := [path for path, match in matches.items() if int(match[2])]:
        raise misfit(
            "the model is cut over several ranks (tensor or pipeline parallelism)",
            str(cut[0]),
            cut[0].name,
            "make it universal first: ds_to_universal.py",
        )
    by_rank = {int(match[1] or 0): path for path, match in matches.items()}
    if missing := sorted(set(range(max(by_rank))) - set(by_rank)):
        raise incomplete("files of ranks are missing", str(folder), f"ranks {missing[:8]}")
    return [by_rank[rank] for rank in sorted(by_rank)]


def _rank(file: TorchFile) -> RankState:
    """Return the state in a rank's file. Raises CheckpointError."""
    saved = as_dict(as_dict(file.content).get("optimizer_state_dict"))
    stage = saved.get("zero_stage")
    number = stage.args[0] if isinstance(stage, PickledCall) and stage.args else stage
    if not isinstance(number, int) or number not in (1, 2, 3):
        raise misfit("the file is of no stage of ZeRO", file.where, str(number)[:40])
    if saved.get("ds_zero_partition_groups") is not None:
        raise misfit(
            "parameters are cut over groups of ranks of their own (MiCS, experts)",
            file.where,
            "ds_zero_partition_groups",
            "make it universal first",
        )
    masters = saved.get("fp32_flat_groups" if number == 3 else "single_partition_of_fp32_groups")
    flats = {ZERO_MASTER: [_flat(file, entry) for entry in as_list(masters)]}
    base = saved.get("optimizer_state_dict" if number == 3 else "base_optimizer_state")
    groups = _states_of(base)
    for kind in _MOMENTS:
        flats[kind] = [_flat(file, group.get(kind)) for group in groups if group.get(kind) is not None]
    paddings = [
        [n for n in as_list(entry) if isinstance(n, int)]
        for entry in as_list(saved.get("param_alignment_paddings"))
    ]
    count = _number(saved.get("partition_count"))
    return RankState(flats, _step(file, saved, base, groups), paddings, number, count, file.where)


def _states_of(base: Value) -> list[PickledDict]:
    """Return the optimizer's state of each group: a list, or a state dict with numbers."""
    if isinstance(base, list):
        return [as_dict(group) for group in base]
    return [
        as_dict(group)
        for _, group in sorted(as_dict(as_dict(base).get("state")).numbers(), key=lambda p: p[0])
    ]


def _step(file: TorchFile, saved: PickledDict, base: Value, groups: Sequence[PickledDict]) -> float | None:
    """Return the optimizer's step, from a state or from a group."""
    in_groups = [as_dict(group).get("step") for group in as_list(as_dict(base).get("param_groups"))]
    candidates = (
        *(group.get("step") for group in groups),
        *in_groups,
        saved.get("base_optimizer_state_step"),
    )
    return next((step for value in candidates if (step := file.number(value)) is not None), None)


def _number(value: Value) -> int | None:
    first = as_list(value)[0] if as_list(value) else value
    return first if isinstance(first, int) else None


def _flat(file: TorchFile, value: Value) -> LazyTensor:
    tensor = file.tensor(value)
    if tensor is None or len(tensor.shape) != 1:
        raise refused(file.where, "a flat group that is no flat tensor")
    return tensor


def _shapes(group: PickledDict, where: str) -> list[tuple[str, tuple[int, ...]]]:
    with refused_by_name(where):
        return [(name, as_shape(shape)) for name, shape in group.texts()]


_Shapes = Sequence[dict[str, tuple[int, ...]]]


def _places_12(ranks: Sequence[RankState], kind: str, shapes: _Shapes) -> dict[str, LazyTensor]:
    """Return each parameter's tensor of a kind, under stage 1 or 2."""
    tensors: dict[str, LazyTensor] = {}
    for number, group in enumerate(shapes):
        if any(number >= len(rank.flats[kind]) for rank in ranks):
            raise incomplete(f"a group has no {kind}", ranks[0].where, f"group {number} of {len(shapes)}")
        flat = FlatParts(tuple(rank.flats[kind][number] for rank in ranks), ranks[0].where)
        paddings = ranks[0].paddings[number] if number < len(ranks[0].paddings) else []
        if paddings and len(paddings) != len(group):
            raise misfit("a group has paddings of another number of parameters", ranks[0].where, str(number))
        begin = 0
        for index, (name, shape) in enumerate(group.items()):
            tensors[name] = flat.lazy(begin, shape)
            begin += prod(shape) + (paddings[index] if paddings else 0)
        begin -= paddings[-1] if paddings else 0
        if not begin <= flat.numel:
            raise misfit(
                f"the ranks' parts of {kind} are shorter than the parameters of their group",
                ranks[0].where,
                f"{flat.numel} elements, {begin} are needed",
            )
    return tensors


def _places_3(ranks: Sequence[RankState], kind: str, shapes: _Shapes) -> dict[str, LazyTensor]:
    """Return each parameter's tensor of a kind, under stage 3: every rank has a part of it."""
    flats = [FlatParts(tuple(rank.flats[kind]), rank.where) for rank in ranks]
    tensors: dict[str, LazyTensor] = {}
    begin = 0
    for group in shapes:
        for name, shape in group.items():
            part = -(-prod(shape) // len(ranks))
            dtype = ranks[0].flats[kind][0].dtype if ranks[0].flats[kind] else torch.float32
            tensors[name] = LazyTensor(dtype, shape, partial(_gather, flats, begin, part, shape))
            begin += part
    for flat in flats:
        if flat.numel < begin:
            raise misfit(
                f"a rank's part of {kind} is shorter than the parameters",
                flat.where,
                f"{flat.numel} elements, {begin} are needed",
            )
    return tensors


def _gather(flats: Sequence[FlatParts], begin: int, part: int, shape: tuple[int, ...]) -> Tensor:
    return torch.cat([flat.read(begin, part) for flat in flats])[: prod(shape)].view(shape)


def _moments(
    ranks: Sequence[RankState], shapes: _Shapes, trained: Mapping[str, tuple[int, ...]], stage: int
) -> Moments:
    tensors_of = _places_3 if stage == 3 else _places_12
    by_kind = {}
    for kind in _MOMENTS:
        by_name = tensors_of(ranks, kind, shapes)
        if is_adapter(by_name):
            by_name = {adapter_name(name): tensor for name, tensor in by_name.items()}
        by_kind[kind] = unwrapped(by_name, set(trained))
    step, where = ranks[0].step, ranks[0].where
    if step is None:
        raise misfit("the optimizer's state has no step: it is not Adam's", where, "", WITHOUT)
    moments: Moments = {}
    for name, shape in trained.items():
        if all(name in tensors for tensors in by_kind.values()):
            moments[name] = {kind: by_kind[kind][name] for kind in _MOMENTS} | {
                "step": LazyTensor.number(step)
            }
            check_adam(moments[name], name, shape, where)
    return moments


# DeepSpeed pads the parts of a parameter under stage 3 to whole multiples of the ranks: elements, at most
MOST_PADDING = 1 << 16
_STEP = re.compile(r"global_step(\d+)")


def read_universal(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return the state in a universal checkpoint. Raises CheckpointError."""
    zero = folder / ZERO
    there = sorted(path.name for path in zero.iterdir() if path.is_dir())
    first = next(iter(names.parameters))
    # A wrapper's prefix (``module.``) stands before every name; the shortest match has no more than that
    matches = sorted((name for name in there if name == first or name.endswith(f".{first}")), key=len)
    prefix = matches[0].removesuffix(first) if matches else ""
    folders = {f"{prefix}{name}" for name in names.parameters}
    unknown = [
        name for name in there if name not in folders and name.removeprefix(prefix) not in names.aliases
    ]
    if unknown:
        raise misfit("tensors are none of the model's", str(zero), ", ".join(unknown[:5]))
    steps = _global_step(folder, files)
    weights: dict[str, LazyTensor] = {}
    kept: Moments = {}
    for name, shape in names.parameters.items():
        inner = zero / f"{prefix}{name}"
        weights[name] = _tensor(files, inner / f"{ZERO_MASTER}.pt", shape)
        if moments:
            step = _step_of(files, inner / "step.pt")
            kept[name] = {
                kind: _tensor(files, inner / f"{kind}.pt", shape) for kind in ("exp_avg", "exp_avg_sq")
            }
            kept[name]["step"] = LazyTensor.number(float(steps) if step is None else step)
            check_adam(kept[name], name, shape, str(inner))
    state = ForeignState("a universal checkpoint of DeepSpeed", steps, weights, kept)
    state.optimizer = ADAM if moments else ""
    if moments and not (zero / f"{prefix}{next(iter(names.parameters))}" / "step.pt").is_file():
        state.left.append(
            f"each parameter's step: the folder has none, so the {steps} finished steps take its place"
        )
    if names.buffers:
        state.left.append("buffers: a universal checkpoint has none; they are the model's own")
    state.left.append(SCHEDULER)
    return state


def _tensor(files: MappedFiles, path: Path, shape: tuple[int, ...]) -> LazyTensor:
    if not path.is_file():
        raise incomplete("a parameter's file is missing", str(path))
    file = files.torch_file(path)
    content = as_dict(file.content)
    tensor = file.tensor(content.get("param") if content.pairs else file.content)
    if tensor is None or prod(tensor.shape) < prod(shape):
        held = "no tensor" if tensor is None else str(list(tensor.shape))
        raise misfit(
            "the file holds another tensor than the parameter's", str(path), f"{held}, {list(shape)}"
        )
    if tensor.shape != shape and (len(tensor.shape) != 1 or prod(tensor.shape) - prod(shape) > MOST_PADDING):
        raise misfit("the tensor has another shape than the parameter", str(path), f"{tensor.shape}, {shape}")
    # It may lie flat, with padding behind it.
    return LazyTensor(tensor.dtype, shape, lambda: tensor.load().reshape(-1)[: prod(shape)].view(shape))


def _step_of(files: MappedFiles, path: Path) -> float | None:
    """Return a parameter's step: a number, or a tensor; None without its file."""
    if not path.is_file():
        return None
    file = files.torch_file(path)
    if (step := file.number(file.content)) is None:
        raise misfit("the file holds no step", str(path), "")
    return step


def _global_step(folder: Path, files: MappedFiles) -> int:
    """Return the finished steps, from the model's states or from the folder's name."""
    for path in sorted(folder.glob("*model_states.pt")):
        steps = as_dict(files.torch_file(path).content).get("global_steps")
        if isinstance(steps, int):
            return steps
    match = _STEP.match(folder.name)
    return int(match[1]) if match else 0
