"""Recognise another program's checkpoint folder by the names of its files. Imports no torch, opens no
pickle."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from paceline.core.files import read_text

ADAPTER_CONFIG = "adapter_config.json"
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
#: Transformers' Trainer's file with the step, and its optimizer; the optimizer of Accelerate's ``save_state``
PLACE, OPTIMIZER, ACCELERATE_OPTIMIZER = "trainer_state.json", "optimizer.pt", "optimizer.bin"
#: torch.distributed.checkpoint's index; Accelerate's folders of one
DCP_FILE, FSDP_MODEL, FSDP_OPTIMIZER = ".metadata", "pytorch_model_fsdp_0", "optimizer_0"
#: DeepSpeed's: a rank's optimizer, a universal checkpoint's folder, a tensor's fp32 master in it
ZERO_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
ZERO, ZERO_MASTER = "zero", "fp32"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


def is_dcp_folder(folder: Path) -> bool:
    """Whether a folder is one of torch.distributed.checkpoint."""
    return (folder / DCP_FILE).is_file()


def is_fsdp_folder(folder: Path) -> bool:
    """Whether a folder holds Accelerate's sharded model, as a ``checkpoint-*`` under FSDP does."""
    return is_dcp_folder(folder / FSDP_MODEL)


def is_universal_folder(folder: Path) -> bool:
    """Whether a folder is a universal checkpoint."""
    zero = folder / ZERO
    return zero.is_dir() and any((inner / f"{ZERO_MASTER}.pt").is_file() for inner in zero.iterdir())


def deepspeed_folder(folder: Path) -> Path | None:
    """Return the folder of the step: itself, or the one that ``latest`` names; None if it is another's."""
    try:
        if any(ZERO_OPTIMIZER.fullmatch(path.name) for path in folder.iterdir()):
            return folder
        tag = read_text(folder / "latest")[:200].strip()
    except (OSError, UnicodeDecodeError):
        return None
    inner = folder / tag
    return inner if _TAG.fullmatch(tag) and inner.is_dir() else None


def is_deepspeed_folder(folder: Path) -> bool:
    """Whether a folder is, or names, a checkpoint of DeepSpeed's ZeRO."""
    inner = deepspeed_folder(folder)
    return inner is not None and any(ZERO_OPTIMIZER.fullmatch(path.name) for path in inner.iterdir())


def is_trainer_folder(folder: Path) -> bool:
    """Whether a folder is a ``checkpoint-*``."""
    return (folder / PLACE).is_file()


def is_accelerate_folder(folder: Path) -> bool:
    """Whether a folder is one of ``Accelerator.save_state``."""
    return (folder / ACCELERATE_OPTIMIZER).is_file() and not is_trainer_folder(folder)


#: The forms that can be converted, in the order in which they are tried.
FORMS: Mapping[Callable[[Path], bool], str] = {
    is_dcp_folder: "a folder of torch.distributed.checkpoint",
    is_fsdp_folder: "a checkpoint of Accelerate under FSDP",
    is_universal_folder: "a universal checkpoint of DeepSpeed",
    is_deepspeed_folder: "a checkpoint of DeepSpeed's ZeRO",
    is_trainer_folder: "a checkpoint of Transformers' Trainer",
    is_accelerate_folder: "a folder of Accelerate's save_state",
}


def not_ours(folder: Path) -> tuple[str, str] | None:
    """Describe another program's checkpoint folder, and how to continue from it; None for any other
    folder."""
    if not folder.is_dir():
        return None
    is_form = next((is_one for is_one in FORMS if is_one(folder)), None)
    if is_form is None:
        return _around(folder) or weights_alone(folder)
    convert = f"convert it: paceline checkpoints convert {quote(str(folder))} --to DIR, and resume from DIR"
    if is_form is not is_trainer_folder or (folder / OPTIMIZER).is_file():
        return f"this is {FORMS[is_form]}, which must be converted first", convert
    return (
        f"this is {FORMS[is_form]} without its optimizer",
        f"for a new run from its weights, set {_start_key(folder)}; or, to keep its step, {convert}",
    )


def _start_key(folder: Path) -> str:
    is_adapter = (folder / ADAPTER_CONFIG).is_file()
    key = "lora: {adapter_name_or_path: %s}" if is_adapter else "model: {name_or_path: %s}"
    return key % folder


def _around(folder: Path) -> tuple[str, str] | None:
    """Return the same for a folder of ``checkpoint-*`` folders, about its newest one."""
    steps = [
        (int(name.group(1)), path)
        for path in folder.iterdir()
        if (name := _CHECKPOINT.fullmatch(path.name)) and is_trainer_folder(path)
    ]
    if not steps:
        return None
    newest = max(steps)[1]
    found = not_ours(newest)
    return found and (f"this folder has {newest.name}: {found[0]}", found[1])


def weights_alone(folder: Path) -> tuple[str, str] | None:
    """Explain that a folder with only weights is not a checkpoint, and how to use it; else None."""
    weights = any((folder / name).is_file() for name in ADAPTERS)
    if (folder / ADAPTER_CONFIG).is_file() and weights:
        merge = f"paceline export {quote(str(folder))} --merge --model BASE --to DIR"
        return (
            f"this is an adapter alone, without the {PLACE} of a checkpoint-* folder",
            f"merge it: {merge}; or train it on: {_start_key(folder)}",
        )
    if (folder / ADAPTER_CONFIG).is_file() or weights:
        lacks = " or ".join(ADAPTERS) if not weights else ADAPTER_CONFIG
        return f"this is a part of an adapter: there is no {lacks}", "copy the whole folder"
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return (
            f"this is a model alone, without the {PLACE} of a checkpoint-* folder",
            f"train it on, or use it as it is: {_start_key(folder)}",
        )
    return None
