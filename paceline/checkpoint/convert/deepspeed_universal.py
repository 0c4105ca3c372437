"""DeepSpeed's universal checkpoints: a folder a parameter, with its fp32 master and moments whole."""

from __future__ import annotations

import re
from functools import partial
from math import prod
from pathlib import Path

from torch import Tensor

from paceline.checkpoint.convert.hf_trainer import check_adam
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles, TensorInFile, refused_by_name
from paceline.checkpoint.convert.pickle_reader.values import as_dict
from paceline.checkpoint.convert.source_state import (
    ADAM,
    ForeignState,
    LazyTensor,
    Moments,
    incomplete,
    misfit,
)
from paceline.checkpoint.convert.tensor_names import ModelNames

ZERO = "zero"
MASTER = "fp32"
MOST_PADDING = 1 << 16  # elements that stage 3 fills the parts of a parameter up with
_STEP = re.compile(r"global_step(\d+)")


def is_universal_folder(folder: Path) -> bool:
    """Whether a folder is a universal checkpoint."""
    zero = folder / ZERO
    return zero.is_dir() and any((one / f"{MASTER}.pt").is_file() for one in zero.iterdir())


def read_universal(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what a universal checkpoint holds. Raises CheckpointError."""
    zero = folder / ZERO
    there = sorted(path.name for path in zero.iterdir() if path.is_dir())
    prefix = _prefix(there, names)
    own = {f"{prefix}{name}" for name in names.parameters}
    unknown = [name for name in there if name not in own and name.removeprefix(prefix) not in names.aliases]
    if unknown:
        raise misfit("tensors are none of the model's", str(zero), ", ".join(unknown[:5]))
    steps = _global_step(folder, files)
    weights: dict[str, LazyTensor] = {}
    kept: Moments = {}
    for name, shape in names.parameters.items():
        inner = zero / f"{prefix}{name}"
        weights[name] = _tensor(files, inner / f"{MASTER}.pt", shape)
        if moments:
            step = _step(files, inner / "step.pt")
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
    state.left.append(
        "the learning rate's scheduler and client state: set schedule, warm-up and max_steps as they were"
    )
    return state


def _prefix(there: list[str], names: ModelNames) -> str:
    first = next(iter(names.parameters))
    found = sorted((name for name in there if name == first or name.endswith(f".{first}")), key=len)
    return found[0].removesuffix(first) if found else ""


def _tensor(files: MappedFiles, path: Path, shape: tuple[int, ...]) -> LazyTensor:
    if not path.is_file():
        raise incomplete("a parameter's file is missing", str(path))
    file = files.torch_file(path)
    content = as_dict(file.content)
    found = file.tensor(content.get("param") if content.pairs else file.content)
    if found is None or prod(found.shape) < prod(shape):
        held = "no tensor" if found is None else str(list(found.shape))
        raise misfit(
            "the file holds another tensor than the parameter's", str(path), f"{held}, {list(shape)}"
        )
    if found.shape != shape and (len(found.shape) != 1 or prod(found.shape) - prod(shape) > MOST_PADDING):
        raise misfit("the tensor has another shape than the parameter", str(path), f"{found.shape}, {shape}")
    return LazyTensor(found.dtype, shape, partial(_shaped, found, str(path), shape))


def _shaped(tensor: TensorInFile, where: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor that may lie flat, with padding behind it."""
    with refused_by_name(where):
        return tensor.load().reshape(-1)[: prod(shape)].view(shape)


def _step(files: MappedFiles, path: Path) -> float | None:
    """Return a parameter's step: a number, or a tensor; None without its file."""
    if not path.is_file():
        return None
    file = files.torch_file(path)
    value = file.content
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    tensor = file.tensor(value)
    if tensor is None or prod(tensor.shape) != 1:
        raise misfit("the file holds no step", str(path), "")
    with refused_by_name(str(path)):
        return float(tensor.load())


def _global_step(folder: Path, files: MappedFiles) -> int:
    """Return the finished steps: of the model's states beside the parameters, or by the folder's name."""
    for path in sorted(folder.glob("*model_states.pt")):
        steps = as_dict(files.torch_file(path).content).get("global_steps")
        if isinstance(steps, int):
            return steps
    found = _STEP.match(folder.name)
    return int(found[1]) if found else 0
