"""Folders of Transformers' Trainer (also TRL's and LLaMA-Factory's) and of Accelerate's ``save_state``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path

from paceline.checkpoint.convert.hf_weights import folder_weights
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles, TorchFile
from paceline.checkpoint.convert.pickle_reader.values import Value, as_dict, as_list
from paceline.checkpoint.convert.source_state import (
    ADAM,
    ADAM_KINDS,
    ForeignState,
    LazyTensor,
    incomplete,
    misfit,
)
from paceline.checkpoint.convert.tensor_names import (
    ModelNames,
    adapter_name,
    by_model,
    read_config,
    unwrapped,
)
from paceline.plan.model.parameter_list import NO_DECAY

PLACE, OPTIMIZER, SCALER = "trainer_state.json", "optimizer.pt", "scaler.pt"
ADAPTER_CONFIG = "adapter_config.json"
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


def is_trainer_folder(folder: Path) -> bool:
    """Whether a folder is a ``checkpoint-*``."""
    return (folder / PLACE).is_file()


def place_of(folder: Path) -> int:
    """Return the finished steps by ``trainer_state.json``. Raises CheckpointError."""
    step = read_config(folder, PLACE).get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53:
        raise misfit("trainer_state.json has no step", str(folder / PLACE), f"global_step: {step!r}"[:100])
    return step


def left_of(folder: Path, sentences: Mapping[str, str] = _LEFT) -> list[str]:
    """Return what of the folder is not brought over, one sentence each."""
    names = [path.name for path in folder.iterdir()]
    return [text for start, text in sentences.items() if any(name.startswith(start) for name in names)]


def read_trainer(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what a ``checkpoint-*`` holds. Raises CheckpointError."""
    state, trained, decaying = state_of(folder, files, names, "a checkpoint of Transformers' Trainer")
    state.step, state.left = place_of(folder), left_of(folder)
    if moments and (folder / OPTIMIZER).is_file():
        file = files.torch_file(folder / OPTIMIZER)
        optimizer_into(state, file, trained, decaying, by_trainer=True)
    elif moments:
        state.left.append("moments: the folder has no optimizer.pt, so the optimizer begins anew")
    scaler_into(state, folder, files)
    return state


_Trained = dict[str, tuple[int, ...]]


def state_of(
    folder: Path, files: MappedFiles, names: ModelNames, form: str
) -> tuple[ForeignState, _Trained, frozenset[str]]:
    """Return the weights of a folder, its model's or its adapter's; the shapes of what is trained, in the
    model's order; and which of it weight decay applies to. Raises CheckpointError.
    """
    if heads := [name for name in _VALUE_HEADS if (folder / name).is_file()]:
        what = "the folder has a value head beside its language model (LLaMA-Factory's rm and ppo stages)"
        hint = "it has a bias, which score heads have not: train the reward model anew, from these weights"
        raise misfit(what, str(folder), heads[0], f"{hint} (model.name_or_path)")
    adapter = read_config(folder, ADAPTER_CONFIG) if (folder / ADAPTER_CONFIG).is_file() else None
    given = folder_weights(folder, files, adapter=adapter is not None)
    if adapter is None:
        weights = by_model(given, names, str(folder))
        trained = {name: weights[name].shape for name in names.parameters}
        return ForeignState(form, 0, weights), trained, names.decaying
    weights = {adapter_name(name): tensor for name, tensor in given.items()}
    trained = adapter_order(weights, names)
    return ForeignState(form, 0, weights, adapter=adapter), trained, adapter_decaying(trained)


def optimizer_into(
    state: ForeignState,
    file: TorchFile,
    trained: Mapping[str, tuple[int, ...]],
    decaying: frozenset[str],
    *,
    by_trainer: bool = False,
) -> None:
    """Put the moments of an optimizer's file into ``state``. ``by_trainer``: Trainer made the optimizer,
    unless its groups say otherwise. Raises CheckpointError.
    """
    content = as_dict(file.content)
    groups = [as_dict(group) for group in as_list(content.get("param_groups"))]
    numbers, names = ([as_list(group.get(key)) for group in groups] for key in ("params", "param_names"))
    order = parameter_order(state, file.where, numbers, names, trained, decaying, by_trainer=by_trainer)
    by_number = dict(as_dict(content.get("state")).numbers())
    for number, name in order.items():
        if number in by_number:
            state.moments[name] = adam_of(file, by_number[number], name, trained[name])
    if not state.moments:
        raise incomplete("optimizer.pt has no moments", file.where)
    state.optimizer = ADAM


def scaler_into(state: ForeignState, folder: Path, files: MappedFiles) -> None:
    """Put the scale of fp16 into ``state``, if the folder has one. Raises CheckpointError."""
    if (folder / SCALER).is_file():
        state.scaler = _scaler(files.torch_file(folder / SCALER))


def adapter_decaying(trained: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return those of an adapter's tensors that weight decay applies to."""
    return frozenset(n for n, shape in trained.items() if len(shape) > 1 and not NO_DECAY.search(n))


def adapter_order(weights: Mapping[str, LazyTensor], names: ModelNames) -> dict[str, tuple[int, ...]]:
    """Return an adapter's tensors with their shapes in the order in which peft's model has them."""
    at = {name.rpartition(".")[0]: number for number, name in enumerate(names.parameters)}

    def place(name: str) -> tuple[int, str]:
        layer, factor, _ = name.partition(".lora_")
        return at.get(layer if factor else name.rpartition(".")[0], len(at)), name

    return {name: weights[name].shape for name in sorted(weights, key=place)}


def parameter_order(
    state: ForeignState,
    where: str,
    numbers: list[list[Value]],
    named: list[list[Value]],
    trained: Mapping[str, tuple[int, ...]],
    decaying: frozenset[str],
    *,
    by_trainer: bool = False,
) -> dict[int, str]:
    """Return the parameter of each number: by ``param_names`` where the file has them; else by the groups.

    Trainer makes two, with and without decay, each in the model's order. Others may have one, whose order
    nothing says: it is refused ``by_trainer``, and said in ``state.left`` otherwise.
    """
    flat = [number for group in numbers for number in group]
    if all(named) and [len(group) for group in numbers] == [len(group) for group in named]:
        return _by_names(where, flat, [str(name) for group in named for name in group], trained)
    decayed, plain = [n for n in trained if n in decaying], [n for n in trained if n not in decaying]
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
    """Return the parameter of each number by the names in the file. Raises CheckpointError."""
    pairs = zip(names, numbers, strict=True)
    plain = unwrapped({adapter_name(name): number for name, number in pairs}, set(trained))
    if strange := sorted(set(plain) - set(trained)):
        what = "the optimizer's param_names are none of what the model trains"
        raise misfit(what, where, ", ".join(strange[:5])[:300], WITHOUT)
    return {number: name for name, number in plain.items() if isinstance(number, int)}


def adam_of(file: TorchFile, value: Value, name: str, shape: tuple[int, ...]) -> dict[str, LazyTensor]:
    """Return Adam's state of one parameter. Raises CheckpointError."""
    found: dict[str, LazyTensor] = {}
    for kind, one in as_dict(value).texts():
        tensor = file.tensor(one)
        if tensor is not None:
            found[kind] = LazyTensor.stored(tensor, file.where)
        elif isinstance(one, (int, float)):
            found[kind] = LazyTensor.number(float(one))
    check_adam(found, name, shape, file.where)
    return found


def check_adam(found: Mapping[str, LazyTensor], name: str, shape: tuple[int, ...], where: str) -> None:
    """Raise CheckpointError unless a parameter's moments are Adam's, in its shape."""
    if set(found) != ADAM_KINDS:
        what = f"the moments of '{name}' are not Adam's (exp_avg, exp_avg_sq, step)"
        raise misfit(what, where, ", ".join(sorted(found)) or "nothing", WITHOUT)
    for kind, tensor in found.items():
        if tensor.shape != (() if kind == "step" else shape):
            what = f"{kind} of '{name}' has another shape than the parameter"
            raise misfit(what, where, f"{tensor.shape}, the parameter {shape}", WITHOUT)


def _scaler(file: TorchFile) -> tuple[float, int] | None:
    content = as_dict(file.content)
    scale, tracker = content.get("scale"), content.get("_growth_tracker")
    return (float(scale), tracker) if isinstance(scale, float) and isinstance(tracker, int) else None


def last_step(moments: Iterable[Mapping[str, LazyTensor]]) -> int:
    """Return the largest ``step`` among the moments; 0 without any."""
    steps = [kinds["step"] for kinds in moments if "step" in kinds]
    found = [float(step.load()) for step in steps if step.shape == ()]
    return int(max((value for value in found if isfinite(value)), default=0))


ACCELERATE_OPTIMIZER = "optimizer.bin"
_LEFT_BY_ACCELERATE = {
    "scheduler": "scheduler.bin: the learning rate of a step follows from training.lr_scheduler_type,"
    " warmup_steps and max_steps; set them as they were",
    "random_states": "random states: they follow from training.seed and the step; with dropout 0 nothing"
    " depends on them",
    "sampler": "sampler.bin: rows are drawn in this run's own order, from this step on",
    "dl_state_dict": "dl_state_dict.bin: rows are drawn in this run's own order, from this step on",
    "custom_checkpoint": "custom_checkpoint_*.pkl: objects of the program's own, which are not read",
}


def is_accelerate_folder(folder: Path) -> bool:
    """Whether a folder is one of ``Accelerator.save_state``."""
    return (folder / ACCELERATE_OPTIMIZER).is_file() and not (folder / PLACE).is_file()


def read_accelerate(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what the folder holds. Raises CheckpointError."""
    others = sorted(
        path.name for path in folder.iterdir() if path.name.startswith(("model_1.", "optimizer_1."))
    )
    if others:
        what, hint = "the folder holds several models or optimizers", "save each model in a folder of its own"
        raise misfit(what, str(folder), ", ".join(others), hint)
    state, trained, decaying = state_of(folder, files, names, "a checkpoint of Accelerate")
    state.left = left_of(folder, _LEFT_BY_ACCELERATE)
    if moments:
        optimizer_into(state, files.torch_file(folder / ACCELERATE_OPTIMIZER), trained, decaying)
    scaler_into(state, folder, files)
    state.step = last_step(state.moments.values())
    if not state.step:
        state.left.append("the step: nothing in the folder says it, so it is 0; give it with --step")
    return state
