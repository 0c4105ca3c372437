"""DeepSpeed's universal checkpoints: a folder a parameter, with its fp32 master and moments whole."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

from paceline.checkpoint.convert.hf_trainer import check_adam
from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor, MappedFiles
from paceline.checkpoint.convert.pickle_reader.values import as_dict
from paceline.checkpoint.convert.source_state import (
    ADAM,
    SCHEDULER,
    ForeignState,
    Moments,
    incomplete,
    misfit,
)
from paceline.checkpoint.convert.tensor_names import ModelNames

ZERO = "zero"
MASTER = "fp32"
# DeepSpeed pads the parts of a parameter under stage 3 to whole multiples of the ranks: elements, at most
MOST_PADDING = 1 << 16
_STEP = re.compile(r"global_step(\d+)")


def is_universal_folder(folder: Path) -> bool:
    """Whether a folder is a universal checkpoint."""
    zero = folder / ZERO
    return zero.is_dir() and any((inner / f"{MASTER}.pt").is_file() for inner in zero.iterdir())


def read_universal(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what a universal checkpoint holds. Raises CheckpointError."""
    zero = folder / ZERO
    there = sorted(path.name for path in zero.iterdir() if path.is_dir())
    prefix = _prefix(there, names)
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
    state.left.append(SCHEDULER)
    return state


def _prefix(there: list[str], names: ModelNames) -> str:
    first = next(iter(names.parameters))
    matches = sorted((name for name in there if name == first or name.endswith(f".{first}")), key=len)
    return matches[0].removesuffix(first) if matches else ""


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


def _step(files: MappedFiles, path: Path) -> float | None:
    """Return a parameter's step: a number, or a tensor; None without its file."""
    if not path.is_file():
        return None
    file = files.torch_file(path)
    if (step := file.number(file.content)) is None:
        raise misfit("the file holds no step", str(path), "")
    return step


def _global_step(folder: Path, files: MappedFiles) -> int:
    """Return the finished steps: of the model's states beside the parameters, or by the folder's name."""
    for path in sorted(folder.glob("*model_states.pt")):
        steps = as_dict(files.torch_file(path).content).get("global_steps")
        if isinstance(steps, int):
            return steps
    match = _STEP.match(folder.name)
    return int(match[1]) if match else 0
