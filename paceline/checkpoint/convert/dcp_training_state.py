"""What a training's state dict in folders of torch.distributed.checkpoint holds: weights and moments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paceline.checkpoint.convert.adapter import adapter_state, is_adapter
from paceline.checkpoint.convert.dcp import METADATA, DcpFolder
from paceline.checkpoint.convert.hf_trainer import (
    check_adam,
    is_trainer_folder,
    last_step,
    left_of,
    parameter_order,
    place_of,
)
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles
from paceline.checkpoint.convert.pickle_reader.values import Value, as_dict, as_list
from paceline.checkpoint.convert.source_state import ADAM, ForeignState, LazyTensor, Moments
from paceline.checkpoint.convert.tensor_names import ModelNames, adapter_name, by_model, unwrapped

MODEL, OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"  # Accelerate's
_MOMENT = re.compile(
    r"(?:.*\.)?state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|max_exp_avg_sq|step|momentum_buffer)"
)
_GROUP = re.compile(r"(?:.*\.)?param_groups(?:\..*)?")
_LISTS = re.compile(r"(?:.*\.)?param_groups\.(\d+)\.(params|param_names)")


def is_dcp_folder(folder: Path) -> bool:
    """Whether a folder is one of torch.distributed.checkpoint."""
    return (folder / METADATA).is_file()


def is_fsdp_folder(folder: Path) -> bool:
    """Whether a folder holds Accelerate's sharded model, as a ``checkpoint-*`` under FSDP does."""
    return is_dcp_folder(folder / MODEL)


def read_dcp(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what a folder holds, or Accelerate's model folder with the optimizer's beside it.

    Raises CheckpointError.
    """
    parts = [DcpFolder(folder, files)]
    if folder.name == MODEL and moments and is_dcp_folder(folder.parent / OPTIMIZER):
        parts.append(DcpFolder(folder.parent / OPTIMIZER, files))
    form = "a checkpoint of torch.distributed.checkpoint"
    return _state(parts, form, names, moments=moments)


def read_fsdp(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what Accelerate saved under FSDP. Raises CheckpointError."""
    state = read_dcp(folder / MODEL, files, names, moments=moments)
    state.form = "an FSDP checkpoint of Accelerate"
    if is_trainer_folder(folder):
        state.step = place_of(folder)
    state.left += left_of(folder)
    return state


def _state(parts: Sequence[DcpFolder], form: str, names: ModelNames, *, moments: bool) -> ForeignState:
    weights: dict[str, LazyTensor] = {}
    kept: dict[str, dict[str, LazyTensor]] = {}
    beside: list[str] = []
    where = str(parts[0].folder)
    for part in parts:
        for name in part.tensors:
            moment = _MOMENT.fullmatch(name)
            if moment is not None:
                kept.setdefault(moment["name"], {})[moment["kind"]] = part.lazy(name)
            elif not _GROUP.fullmatch(name):
                weights[name] = part.lazy(name)
        beside += [name for name in part.others if not _GROUP.fullmatch(name)]
    if is_adapter(weights):
        found, trained, decaying = adapter_state(weights, kept, parts[0].folder, names, form)
    else:
        plain = unwrapped(weights, set(names.parameters))
        expected = {*names.parameters, *names.buffers, *names.aliases}
        mine = {name: tensor for name, tensor in plain.items() if name in expected}
        used = {id(tensor) for tensor in mine.values()}
        beside += sorted(name for name, tensor in weights.items() if id(tensor) not in used)
        found, decaying = ForeignState(form, 0, by_model(mine, names, where)), names.decaying
        trained = dict(names.parameters)
    if moments and kept:
        found.moments = _named(found, parts, kept, trained, decaying, where)
        found.optimizer = ADAM
    elif moments:
        found.left.append("moments: the folder has none, so the optimizer begins anew")
    found.step = last_step(kept.values())
    if not found.step:
        found.left.append("the step: nothing in the folder says it, so it is 0; give it with --step")
    if beside:
        more = f" and {len(beside) - 5} more" if len(beside) > 5 else ""
        found.left.append(
            f"entries of the state dict that are no weights or moments: {', '.join(beside[:5])}{more}"
        )
    return found


def _named(
    state: ForeignState,
    parts: Sequence[DcpFolder],
    kept: Mapping[str, dict[str, LazyTensor]],
    trained: Mapping[str, tuple[int, ...]],
    decaying: frozenset[str],
    where: str,
) -> Moments:
    """Return the moments by the names of what is trained. Raises CheckpointError."""
    by_name: Mapping[str, dict[str, LazyTensor]] = kept
    if all(name.isdecimal() for name in kept):
        numbers, names = _groups(parts, "params"), _groups(parts, "param_names")
        order = parameter_order(state, where, numbers, names, trained, decaying)
        by_name = {order[int(n)]: kinds for n, kinds in kept.items() if int(n) in order}
    elif is_adapter(by_name):
        by_name = {adapter_name(name): kinds for name, kinds in by_name.items()}
    plain = unwrapped(by_name, set(trained))
    found = {name: plain[name] for name in trained if name in plain}
    for name, kinds in found.items():
        check_adam(kinds, name, trained[name], where)
    return found


def _groups(parts: Iterable[DcpFolder], key: str) -> list[list[Value]]:
    """Return a list of each group, ``params`` or ``param_names``; empty where a group has none."""
    found: dict[int, list[Value]] = {}
    for part in parts:
        for name in part.others:
            if (one := _LISTS.fullmatch(name)) is not None:
                found.setdefault(int(one[1]), [])
                if one[2] == key:
                    found[int(one[1])] = as_list(part.other(name))
            elif name.endswith("param_groups"):
                groups = as_list(part.other(name))
                found |= {at: as_list(as_dict(group).get(key)) for at, group in enumerate(groups)}
    return [found[at] for at in sorted(found)]
