"""Folders of Transformers' Trainer (also TRL's and LLaMA-Factory's) and of Accelerate's ``save_state``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import isfinite
from pathlib import Path

from torch import Tensor

from paceline.checkpoint.convert.pickle_reader.torch_tensors import (
    LazyTensor,
    MappedFiles,
    TorchFile,
    refused,
)
from paceline.checkpoint.convert.pickle_reader.values import Value, as_dict, as_list
from paceline.checkpoint.convert.tensor_names import (
    ADAM,
    ADAM_KINDS,
    NO_STEP,
    ForeignState,
    ModelNames,
    adapter_name,
    bare_adapter,
    incomplete,
    misfit,
    model_state,
    read_config,
    unwrapped,
)
from paceline.checkpoint.format.foreign_folders import (
    ACCELERATE_OPTIMIZER,
    ADAPTER_CONFIG,
    ADAPTERS,
    OPTIMIZER,
    PLACE,
)
from paceline.checkpoint.format.safetensors_file import ByteRange, read_header, read_rows
from paceline.checkpoint.format.verify_files import open_regular
from paceline.core.errors import CheckpointError
from paceline.core.json_types import as_object

SCALER = "scaler.pt"
_VALUE_HEADS = ("value_head.safetensors", "value_head.bin")
WITHOUT = "use --weights-only to bring over the weights alone, with new moments"
_ASSUMED = (
    "names of the moments: the optimizer's file has numbers alone, so the order is taken to be that of"
    " model.parameters(); if the optimizer was given another one, convert with --weights-only"
)
_LEFT = {
    "scheduler.pt": "scheduler.pt: the learning rate of a step follows from training.lr_scheduler_type,"
    " warmup_steps and max_steps; set them as they were",
    "rng_state": "random states: they follow from training.seed and the step; with dropout 0 nothing depends"
    " on them",
    "training_args": "training_args.bin: it is not read; write what it says into the config",
    PLACE: "the position in the data: rows are drawn in this run's own order, from this step on",
}


def trainer_step(folder: Path) -> int:
    """Return the finished steps by ``trainer_state.json``. Raises CheckpointError."""
    step = read_config(folder, PLACE).get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53:
        raise misfit("trainer_state.json has no step", str(folder / PLACE), f"global_step: {step!r}"[:100])
    return step


def left_of(folder: Path, sentences: Mapping[str, str] = _LEFT) -> list[str]:
    """Return the parts of the folder that are lost, one sentence each."""
    names = [path.name for path in folder.iterdir()]
    return [text for start, text in sentences.items() if any(name.startswith(start) for name in names)]


def read_trainer(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return the state in a ``checkpoint-*``. Raises CheckpointError."""
    state = state_of(folder, files, names, "a checkpoint of Transformers' Trainer")
    state.step, state.left = trainer_step(folder), left_of(folder)
    if moments and (folder / OPTIMIZER).is_file():
        optimizer_into(state, files.torch_file(folder / OPTIMIZER), by_trainer=True)
    elif moments:
        state.left.append("moments: the folder has no optimizer.pt, so the optimizer begins anew")
    scaler_into(state, folder, files)
    return state


def state_of(folder: Path, files: MappedFiles, names: ModelNames, form: str) -> ForeignState:
    """Return the weights of a folder, its model's or its adapter's. Raises CheckpointError."""
    if heads := [name for name in _VALUE_HEADS if (folder / name).is_file()]:
        problem = "the folder has a value head beside its language model (LLaMA-Factory's rm and ppo stages)"
        remedy = "it has a bias, which score heads have not: train the reward model anew, from these weights"
        raise misfit(problem, str(folder), heads[0], f"{remedy} (model.name_or_path)")
    adapter = read_config(folder, ADAPTER_CONFIG) if (folder / ADAPTER_CONFIG).is_file() else None
    tensors = folder_weights(folder, files, adapter=adapter is not None)
    if adapter is not None:
        weights = {adapter_name(name): tensor for name, tensor in tensors.items()}
        return bare_adapter(weights, names, form, adapter)
    state = model_state(form, tensors, names, str(folder))
    state.trained = {name: state.weights[name].shape for name in names.parameters}
    return state


def optimizer_into(state: ForeignState, file: TorchFile, *, by_trainer: bool = False) -> None:
    """Put the moments of an optimizer's file into ``state``. ``by_trainer``: Trainer made the optimizer,
    unless its groups say otherwise. Raises CheckpointError.
    """
    content = as_dict(file.content)
    groups = [as_dict(group) for group in as_list(content.get("param_groups"))]
    numbers, names = ([as_list(group.get(key)) for group in groups] for key in ("params", "param_names"))
    order = parameter_order(state, file.where, numbers, names, by_trainer=by_trainer)
    by_number = dict(as_dict(content.get("state")).numbers())
    for number, name in order.items():
        if number in by_number:
            state.moments[name] = adam_of(file, by_number[number], name, state.trained[name])
    if not state.moments:
        raise incomplete("optimizer.pt has no moments", file.where)
    state.optimizer = ADAM


def scaler_into(state: ForeignState, folder: Path, files: MappedFiles) -> None:
    """Put the scale of fp16 into ``state``, if the folder has one. Raises CheckpointError."""
    if (folder / SCALER).is_file():
        state.scaler = _scaler(files.torch_file(folder / SCALER))


def parameter_order(
    state: ForeignState,
    where: str,
    numbers: list[list[Value]],
    names: list[list[Value]],
    *,
    by_trainer: bool = False,
) -> dict[int, str]:
    """Return the parameter of each number: by ``param_names`` where the file has them; else by the groups.

    Trainer makes two groups, with and without decay, each in the model's order. Other programs may have one,
    whose order is unknown: it is refused with ``by_trainer``, and otherwise reported in ``state.left``.
    """
    flat, trained = [number for group in numbers for number in group], state.trained
    if all(names) and [len(group) for group in numbers] == [len(group) for group in names]:
        return _by_names(where, flat, [str(name) for group in names for name in group], trained)
    decayed = [n for n in trained if n in state.decaying]
    plain = [n for n in trained if n not in state.decaying]
    sizes, two = [len(group) for group in numbers], [len(decayed), len(plain)]
    filled = [size for size in sizes if size]
    order: list[str] = []
    if sizes == two or (not by_trainer and filled == [size for size in two if size]):
        order = decayed + plain
    elif not by_trainer and filled == [len(trained)]:
        order = list(trained)
    if order:
        state.left += [] if by_trainer else [_ASSUMED]
        return {n: name for n, name in zip(flat, order, strict=True) if isinstance(n, int)}
    raise misfit(
        "which moments belong to which parameter is not known: the file has no names of them, and the"
        " optimizer's groups are not the model's" + (" as Trainer makes them" if by_trainer else ""),
        where,
        f"groups of {sizes} parameters, where the model trains {len(trained)}: {two[0]} with weight decay and"
        f" {two[1]} without",
        f"{WITHOUT}; an optimizer that is made of model.named_parameters() keeps the names",
    )


def _by_names(
    where: str, numbers: list[Value], names: list[str], trained: Mapping[str, tuple[int, ...]]
) -> dict[int, str]:
    """Return the parameter of each number, by the names in the file. Raises CheckpointError."""
    pairs = zip(names, numbers, strict=True)
    plain = unwrapped({adapter_name(name): number for name, number in pairs}, set(trained))
    if strange := sorted(set(plain) - set(trained)):
        raise misfit(
            "the optimizer's param_names are none of what the model trains",
            where,
            ", ".join(strange[:5])[:300],
            WITHOUT,
        )
    return {number: name for name, number in plain.items() if isinstance(number, int)}


def adam_of(file: TorchFile, value: Value, name: str, shape: tuple[int, ...]) -> dict[str, LazyTensor]:
    """Return Adam's state of one parameter. Raises CheckpointError."""
    states: dict[str, LazyTensor] = {}
    for kind, item in as_dict(value).texts():
        tensor = file.tensor(item)
        if tensor is not None:
            states[kind] = tensor
        elif isinstance(item, (int, float)):
            states[kind] = LazyTensor.number(float(item))
    check_adam(states, name, shape, file.where)
    return states


def check_adam(states: Mapping[str, LazyTensor], name: str, shape: tuple[int, ...], where: str) -> None:
    """Raise CheckpointError unless a parameter's moments are Adam's, in its shape."""
    if set(states) != ADAM_KINDS:
        raise misfit(
            f"the moments of '{name}' are not Adam's (exp_avg, exp_avg_sq, step)",
            where,
            ", ".join(sorted(states)) or "nothing",
            WITHOUT,
        )
    for kind, tensor in states.items():
        if tensor.shape != (() if kind == "step" else shape):
            raise misfit(
                f"{kind} of '{name}' has another shape than the parameter",
                where,
                f"{tensor.shape}, the parameter {shape}",
                WITHOUT,
            )


def _scaler(file: TorchFile) -> tuple[float, int] | None:
    content = as_dict(file.content)
    scale, tracker = content.get("scale"), content.get("_growth_tracker")
    return (float(scale), tracker) if isinstance(scale, float) and isinstance(tracker, int) else None


def step_into(state: ForeignState, moments: Mapping[str, Mapping[str, LazyTensor]]) -> None:
    """Put the largest ``step`` among the moments into ``state``; report if there is none."""
    tensors = [kinds["step"] for kinds in moments.values() if "step" in kinds]
    steps = [float(tensor.load()) for tensor in tensors if tensor.shape == ()]
    state.step = int(max(filter(isfinite, steps), default=0))
    state.left += [] if state.step else [NO_STEP]


_LEFT_BY_ACCELERATE = {
    "scheduler": "scheduler.bin: the learning rate of a step follows from training.lr_scheduler_type,"
    " warmup_steps and max_steps; set them as they were",
    "random_states": "random states: they follow from training.seed and the step; with dropout 0 nothing"
    " depends on them",
    "sampler": "sampler.bin: rows are drawn in this run's own order, from this step on",
    "dl_state_dict": "dl_state_dict.bin: rows are drawn in this run's own order, from this step on",
    "custom_checkpoint": "custom_checkpoint_*.pkl: objects of the program's own, which are not read",
}


def read_accelerate(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return the state in the folder. Raises CheckpointError."""
    others = sorted(
        path.name for path in folder.iterdir() if path.name.startswith(("model_1.", "optimizer_1."))
    )
    if others:
        raise misfit(
            "the folder holds several models or optimizers",
            str(folder),
            ", ".join(others),
            "save each model in a folder of its own",
        )
    state = state_of(folder, files, names, "a checkpoint of Accelerate")
    state.left = left_of(folder, _LEFT_BY_ACCELERATE)
    if moments:
        optimizer_into(state, files.torch_file(folder / ACCELERATE_OPTIMIZER))
    scaler_into(state, folder, files)
    step_into(state, state.moments)
    return state


_INDEX = ".index.json"
_MODELS = ("model.safetensors", "pytorch_model.bin", "pytorch_model_fsdp.bin")


def folder_weights(folder: Path, files: MappedFiles, *, adapter: bool = False) -> dict[str, LazyTensor]:
    """Return the tensors of a folder's model, or of its adapter. Raises CheckpointError."""
    for name in ADAPTERS if adapter else _MODELS:
        if (folder / f"{name}{_INDEX}").is_file():
            tensors: dict[str, LazyTensor] = {}
            for part in _of_index(folder, f"{name}{_INDEX}"):
                tensors |= dict(file_weights(folder / part, files))
            return tensors
        if (folder / name).is_file():
            return dict(file_weights(folder / name, files))
    raise incomplete(
        "the folder has no weights", str(folder), f"none of {', '.join(ADAPTERS if adapter else _MODELS)}"
    )


def _of_index(folder: Path, index: str) -> list[str]:
    names = {str(name) for name in as_object(read_config(folder, index).get("weight_map")).values()}
    for name in names:
        if "/" in name or "\\" in name or name.startswith("."):
            raise refused(str(folder / index), f"the file name {name[:100]!r}, which is no plain one")
    return sorted(names)


def file_weights(path: Path, files: MappedFiles) -> Iterator[tuple[str, LazyTensor]]:
    """Yield name and tensor of one file. Raises CheckpointError."""
    if path.suffix == ".safetensors":
        yield from _safetensors(path)
        return
    opened = files.torch_file(path)
    for name, value in as_dict(opened.content).texts():
        if (tensor := opened.tensor(value)) is not None:
            yield name, tensor


def _safetensors(path: Path) -> Iterator[tuple[str, LazyTensor]]:
    try:
        with open_regular(path) as file:
            slots, _, _ = read_header(file, path.parent, path.name)
    except FileNotFoundError:
        raise incomplete("a file of the checkpoint is missing", str(path)) from None
    except CheckpointError as exc:
        raise misfit("the file is no sound safetensors file", str(path), exc.diagnostics[0].found) from None
    for name, slot in slots.items():
        yield name, LazyTensor(slot.dtype, slot.shape, partial(_read, path, slot))


def _read(path: Path, slot: ByteRange) -> Tensor:
    with open_regular(path) as file:
        return read_rows(file, slot, 0, slot.shape[0] if slot.shape else 1)
