"""A folder of Accelerate's ``save_state`` without FSDP or DeepSpeed: model.safetensors, optimizer.bin."""

from __future__ import annotations

from pathlib import Path

from paceline.checkpoint.convert.hf_trainer import PLACE, last_step, optimizer_into, scaler_into, state_of
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles
from paceline.checkpoint.convert.source_state import ForeignState, misfit
from paceline.checkpoint.convert.tensor_names import ModelNames

OPTIMIZER = "optimizer.bin"
_LEFT = {
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
    return (folder / OPTIMIZER).is_file() and not (folder / PLACE).is_file()


def read_accelerate(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what the folder holds. Raises CheckpointError."""
    others = sorted(
        path.name for path in folder.iterdir() if path.name.startswith(("model_1.", "optimizer_1."))
    )
    if others:
        what, hint = "the folder holds several models or optimizers", "save each model in a folder of its own"
        raise misfit(what, str(folder), ", ".join(others), hint)
    state, trained, decaying = state_of(folder, files, names, "a checkpoint of Accelerate")
    there = sorted(path.name for path in folder.iterdir())
    state.left = [text for start, text in _LEFT.items() if any(name.startswith(start) for name in there)]
    if moments:
        optimizer_into(state, files.torch_file(folder / OPTIMIZER), trained, decaying)
    scaler_into(state, folder, files)
    state.step = last_step(state.moments.values())
    if not state.step:
        state.left.append("the step: nothing in the folder says it, so it is 0; give it with --step")
    return state
