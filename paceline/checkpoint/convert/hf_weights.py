"""The weights of a Hugging Face folder by name: safetensors, or files of torch.save."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles, refused
from paceline.checkpoint.convert.pickle_reader.values import as_dict
from paceline.checkpoint.convert.source_state import LazyTensor, incomplete, misfit
from paceline.checkpoint.convert.tensor_names import read_config
from paceline.checkpoint.format.safetensors_file import Slot, read_header, read_rows
from paceline.checkpoint.format.verify_files import open_regular
from paceline.core.errors import CheckpointError
from paceline.core.json_types import as_object

_INDEX = ".index.json"
_MODELS = ("model.safetensors", "pytorch_model.bin", "pytorch_model_fsdp.bin")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


def folder_weights(folder: Path, files: MappedFiles, *, adapter: bool = False) -> dict[str, LazyTensor]:
    """Return the tensors of a folder's model, or of its adapter. Raises CheckpointError."""
    for name in _ADAPTERS if adapter else _MODELS:
        if (folder / f"{name}{_INDEX}").is_file():
            found: dict[str, LazyTensor] = {}
            for part in _of_index(folder, f"{name}{_INDEX}"):
                found |= dict(file_weights(folder / part, files))
            return found
        if (folder / name).is_file():
            return dict(file_weights(folder / name, files))
    what = "the folder has no weights"
    raise incomplete(what, str(folder), f"none of {', '.join(_ADAPTERS if adapter else _MODELS)}")


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
            yield name, LazyTensor.stored(tensor, str(path))


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


def _read(path: Path, slot: Slot) -> Tensor:
    with open_regular(path) as file:
        return read_rows(file, slot, 0, slot.shape[0] if slot.shape else 1)
