"""Folders of torch.distributed.checkpoint, and the weights and moments of a training in them.

``.metadata`` says where each chunk of each tensor lies. Accelerate's ``pytorch_model_fsdp_0`` and
``optimizer_0`` are two such folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint.convert.hf_trainer import (
    check_adam,
    left_of,
    parameter_order,
    step_into,
    trainer_step,
)
from paceline.checkpoint.convert.pickle_reader.allowed_names import (
    DCP_BYTES,
    DCP_INDEX,
    DCP_METADATA,
    DCP_STORAGE,
    DCP_TENSOR,
    DTYPE_WORDS,
)
from paceline.checkpoint.convert.pickle_reader.machine import MAX_BYTES
from paceline.checkpoint.convert.pickle_reader.torch_tensors import (
    LazyTensor,
    MappedFiles,
    TorchFile,
    open_source,
    refused,
    refused_by_name,
)
from paceline.checkpoint.convert.pickle_reader.values import (
    PickledCall,
    PickledDict,
    PickledName,
    Refused,
    Value,
    as_dict,
    as_integer,
    as_list,
    as_shape,
)
from paceline.checkpoint.convert.tensor_names import (
    ADAM,
    ForeignState,
    ModelNames,
    Moments,
    adapter_name,
    adapter_state,
    incomplete,
    is_adapter,
    model_state,
    some_of,
    unwrapped,
)
from paceline.checkpoint.format.foreign_folders import (
    DCP_FILE,
    FSDP_MODEL,
    FSDP_OPTIMIZER,
    is_dcp_folder,
    is_trainer_folder,
)
from paceline.checkpoint.format.safetensors_file import DTYPES

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_Offsets = tuple[int, ...]


@dataclass(frozen=True)
class DcpChunk:
    """A block of a tensor, or another value: bytes ``[start, start + length)`` of a file."""

    file: str
    start: int
    length: int


@dataclass(frozen=True)
class DcpTensor:
    """A tensor by its metadata: offsets and shape of each chunk."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: Mapping[_Offsets, tuple[int, ...]]


class DcpFolder:
    """One folder: ``tensors`` and ``others`` (numbers, lists, texts) by the names in its state dict."""

    def __init__(self, folder: Path, files: MappedFiles) -> None:
        """Raises CheckpointError."""
        self.folder, self._files = folder, files
        path = folder / DCP_FILE
        where = str(path)
        with open_source(path) as file, refused_by_name(where):
            content = files.pickles.read(file.read(MAX_BYTES + 1))
            if not isinstance(content, PickledCall) or content.name != DCP_METADATA:
                raise Refused("no metadata of torch.distributed.checkpoint")
            state = as_dict(content.state)
            self._places = dict(_places(as_dict(state.get("storage_data"))))
            self.tensors = dict(_tensors(as_dict(state.get("state_dict_metadata"))))
            self.others = [
                name
                for name, value in as_dict(state.get("state_dict_metadata")).texts()
                if isinstance(value, PickledCall) and value.name == DCP_BYTES
            ]
        for name, tensor in self.tensors.items():
            covered = sum(prod(shape) for shape in tensor.chunks.values())
            if covered != prod(tensor.shape):
                raise incomplete(
                    f"chunks of '{name}' are missing, or lie over one another",
                    where,
                    f"{covered} of {prod(tensor.shape)} elements",
                )

    def lazy(self, name: str) -> LazyTensor:
        """Return a tensor that is read on demand."""
        tensor = self.tensors[name]
        for offsets, shape in tensor.chunks.items():  # before anything of that size is allocated
            stored, need = self._place(name, offsets), prod(shape) * tensor.dtype.itemsize
            if stored.length < need or stored.start + stored.length > len(
                self._files.view(self.folder / stored.file)
            ):
                raise refused(
                    str(self.folder / DCP_FILE),
                    f"'{name}': a chunk of {need} bytes in {stored.length} of {stored.file}",
                )
        return LazyTensor(tensor.dtype, tensor.shape, partial(self._load, name, tensor))

    def other(self, name: str) -> Value:
        """Return a value that is not a tensor. Raises CheckpointError."""
        return self._open(name, None).content

    def _load(self, name: str, tensor: DcpTensor) -> Tensor:
        if len(tensor.chunks) == 1:
            return self._chunk(name, *next(iter(tensor.chunks.items())), tensor.dtype)
        result = torch.empty(tensor.shape, dtype=tensor.dtype)
        seen = torch.zeros(tensor.shape, dtype=torch.bool)
        for offsets, shape in tensor.chunks.items():
            block = tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
            result[block] = self._chunk(name, offsets, shape, tensor.dtype)
            seen[block] = True
        if not bool(seen.all()):
            raise incomplete(f"chunks of '{name}' lie over one another", str(self.folder / DCP_FILE))
        return result

    def _chunk(self, name: str, offsets: _Offsets, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        opened = self._open(name, offsets)
        stored = opened.tensor(opened.content)
        if stored is None or stored.shape != shape or stored.dtype != dtype:
            held = "no tensor" if stored is None else f"{stored.dtype} {list(stored.shape)}"
            raise refused(opened.where, f"'{name}' is {held}, by the metadata {dtype} {list(shape)}")
        return stored.load()

    def _place(self, name: str, offsets: _Offsets | None) -> DcpChunk:
        chunk = self._places.get((name, offsets))
        if chunk is None and offsets is not None and not any(offsets):
            chunk = self._places.get((name, None))
        if chunk is None:
            raise incomplete(f"'{name}' has no place in a file", str(self.folder / DCP_FILE))
        return chunk

    def _open(self, name: str, offsets: _Offsets | None) -> TorchFile:
        chunk = self._place(name, offsets)
        return self._files.torch_file(self.folder / chunk.file, chunk.start, chunk.length)


def _places(storage: PickledDict) -> Iterator[tuple[tuple[str, _Offsets | None], DcpChunk]]:
    """Yield (name, offsets) and place of each chunk. Raises Refused."""
    for key, value in storage.pairs:
        if not isinstance(key, PickledCall) or key.name != DCP_INDEX:
            raise Refused("a place that no tensor has")
        if not isinstance(value, PickledCall) or value.name != DCP_STORAGE:
            raise Refused("a tensor without a place")
        index, info = as_dict(key.state), as_dict(value.state)
        name, offset, file = index.get("fqn"), index.get("offset"), info.get("relative_path")
        if not isinstance(name, str) or not isinstance(file, str):
            raise Refused("a place without a name")
        if not _FILE.fullmatch(file):
            raise Refused(f"the file name {file[:100]!r}, which is no plain one")
        if info.get("transform_descriptors"):
            raise Refused(f"'{name}' is compressed or encrypted by a transform of its own")
        offsets = None if offset is None else as_shape(offset)
        yield (name, offsets), DcpChunk(file, as_integer(info.get("offset")), as_integer(info.get("length")))


def _tensors(metadata: PickledDict) -> Iterator[tuple[str, DcpTensor]]:
    """Yield name and description of each tensor. Raises Refused."""
    for name, value in metadata.texts():
        if not isinstance(value, PickledCall) or value.name != DCP_TENSOR:
            continue
        state = as_dict(value.state)
        properties = state.get("properties")
        kind = as_list(properties.state)[:1] if isinstance(properties, PickledCall) else []
        word = kind[0].name if kind and isinstance(kind[0], PickledName) else ""
        if word not in DTYPE_WORDS:
            raise Refused(f"'{name[:100]}' has the dtype {word or 'of no name'!r}")
        shape = as_shape(state.get("size"))
        chunks: dict[_Offsets, tuple[int, ...]] = {}
        for chunk in as_list(state.get("chunks")):
            inner = as_dict(chunk.state) if isinstance(chunk, PickledCall) else PickledDict()
            offsets, sizes = as_shape(inner.get("offsets")), as_shape(inner.get("sizes"))
            if not len(offsets) == len(sizes) == len(shape):
                raise Refused(f"a chunk of '{name[:100]}' with {len(offsets)} of {len(shape)} dimensions")
            if any(o + n > size for o, n, size in zip(offsets, sizes, shape, strict=True)):
                raise Refused(f"a chunk of '{name[:100]}' lies outside of the tensor")
            if prod(sizes) or not prod(shape):
                chunks[offsets] = sizes
        yield name, DcpTensor(DTYPES[DTYPE_WORDS[word]], shape, chunks)


_MOMENT = re.compile(
    r"(?:.*\.)?state\.(?P<name>.+)\.(?P<kind>exp_avg|exp_avg_sq|max_exp_avg_sq|step|momentum_buffer)"
)
_GROUP = re.compile(r"(?:.*\.)?param_groups(?:\..*)?")
_LISTS = re.compile(r"(?:.*\.)?param_groups\.(\d+)\.(params|param_names)")


def read_dcp(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return the contents of a folder, or of Accelerate's model folder and the optimizer's folder next to it.

    Raises CheckpointError.
    """
    parts = [DcpFolder(folder, files)]
    if folder.name == FSDP_MODEL and moments and is_dcp_folder(folder.parent / FSDP_OPTIMIZER):
        parts.append(DcpFolder(folder.parent / FSDP_OPTIMIZER, files))
    return _state(parts, "a checkpoint of torch.distributed.checkpoint", names, moments=moments)


def read_fsdp(folder: Path, files: MappedFiles, names: ModelNames, *, moments: bool) -> ForeignState:
    """Return what Accelerate saved under FSDP. Raises CheckpointError."""
    state = read_dcp(folder / FSDP_MODEL, files, names, moments=moments)
    state.form = "an FSDP checkpoint of Accelerate"
    if is_trainer_folder(folder):
        state.step = trainer_step(folder)
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
        state = adapter_state(weights, kept, parts[0].folder, names, form)
    else:
        plain = unwrapped(weights, set(names.parameters))
        expected = {*names.parameters, *names.buffers, *names.aliases}
        mine = {name: tensor for name, tensor in plain.items() if name in expected}
        used = {id(tensor) for tensor in mine.values()}
        beside += sorted(name for name, tensor in weights.items() if id(tensor) not in used)
        state = model_state(form, mine, names, where)
    if moments and kept:
        state.moments = _named(state, parts, kept, where)
        state.optimizer = ADAM
    elif moments:
        state.left.append("moments: the folder has none, so the optimizer begins anew")
    step_into(state, kept)
    if beside:
        state.left.append(f"entries of the state dict that are no weights or moments: {some_of(beside)}")
    return state


def _named(
    state: ForeignState,
    parts: Sequence[DcpFolder],
    kept: Mapping[str, dict[str, LazyTensor]],
    where: str,
) -> Moments:
    """Return the moments by the names of the trained parameters. Raises CheckpointError."""
    by_name: Mapping[str, dict[str, LazyTensor]] = kept
    if all(name.isdecimal() for name in kept):
        numbers, names = _groups(parts, "params"), _groups(parts, "param_names")
        order = parameter_order(state, where, numbers, names)
        by_name = {order[int(n)]: kinds for n, kinds in kept.items() if int(n) in order}
    elif is_adapter(by_name):
        by_name = {adapter_name(name): kinds for name, kinds in by_name.items()}
    plain = unwrapped(by_name, set(state.trained))
    moments = {name: plain[name] for name in state.trained if name in plain}
    for name, kinds in moments.items():
        check_adam(kinds, name, state.trained[name], where)
    return moments


def _groups(parts: Iterable[DcpFolder], key: str) -> list[list[Value]]:
    """Return a list of each group, ``params`` or ``param_names``; empty where a group has none."""
    lists: dict[int, list[Value]] = {}
    for part in parts:
        for name in part.others:
            if (match := _LISTS.fullmatch(name)) is not None:
                lists.setdefault(int(match[1]), [])
                if match[2] == key:
                    lists[int(match[1])] = as_list(part.other(name))
            elif name.endswith("param_groups"):
                groups = as_list(part.other(name))
                lists |= {number: as_list(as_dict(group).get(key)) for number, group in enumerate(groups)}
    return [lists[number] for number in sorted(lists)]
