"""Tensors of files that torch.save wrote: found by inert values, read from the mapped file when wanted."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.convert.pickle_reader.allowed_names import (
    REBUILD_PARAMETER,
    REBUILD_TENSOR,
    REBUILD_TYPE,
    STORAGES,
)
from paceline.checkpoint.convert.pickle_reader.client import PickleReader
from paceline.checkpoint.convert.pickle_reader.torch_zip import TorchArchive
from paceline.checkpoint.convert.pickle_reader.values import (
    PickledCall,
    PickledId,
    PickledName,
    Refused,
    Value,
    as_shape,
    as_whole,
)
from paceline.checkpoint.format.safetensors_file import DTYPES
from paceline.checkpoint.format.verify_files import open_regular
from paceline.core.errors import CheckpointError


@dataclass(frozen=True)
class TensorInFile:
    """A tensor in an archive: ``offset`` and ``stride`` count elements of its storage ``key``."""

    archive: TorchArchive
    dtype: torch.dtype
    key: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def load(self) -> Tensor:
        """Return the tensor; its pages are read from the file as they are touched. Raises Refused."""
        data = self.archive.read(f"data/{self.key}")
        if not prod(self.shape):
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        if flat.data_ptr() % self.dtype.itemsize:
            flat = flat.clone()
        return flat.view(self.dtype).as_strided(self.shape, self.stride, self.offset)


class TorchFile:
    """An open file of torch.save: ``content`` has inert values; ``tensor`` finds the tensors among them."""

    def __init__(self, view: memoryview, pickles: PickleReader, where: str) -> None:
        """Raises CheckpointError ``convert.refused`` that names the file."""
        self.where = where
        with refused_by_name(where):
            self.archive = TorchArchive(view)
            self.content: Value = pickles.read(self.archive.read("data.pkl"))

    def tensor(self, value: Value) -> TensorInFile | None:
        """Return the tensor that ``value`` stands for, None if it stands for none. Raises CheckpointError."""
        if not isinstance(value, PickledCall):
            return None
        if value.name in REBUILD_PARAMETER and value.args:
            return self.tensor(value.args[0])
        if value.name == REBUILD_TYPE and len(value.args) == 4:
            inner, _, args, _ = value.args
            if not isinstance(inner, PickledName) or not isinstance(args, tuple):
                return None
            return self.tensor(PickledCall(inner.name, args))
        if value.name not in REBUILD_TENSOR:
            return None
        with refused_by_name(self.where):
            return self._stored(value)

    def _stored(self, value: PickledCall) -> TensorInFile:
        if len(value.args) < 4:
            raise Refused("a tensor without its shape")
        storage, offset, shape, stride = value.args[:4]
        named = storage.value if isinstance(storage, PickledId) else None
        if not isinstance(named, tuple) or len(named) != 5 or not isinstance(named[2], str):
            raise Refused("a tensor without its storage")
        kind = named[1].name if isinstance(named[1], PickledName) else ""
        if kind not in STORAGES:
            raise Refused(f"a storage of the kind {kind!r}")
        dtype, numel = DTYPES[STORAGES[kind]], as_whole(named[4])
        found = TensorInFile(
            self.archive, dtype, named[2], as_whole(offset), as_shape(shape), as_shape(stride)
        )
        if numel * dtype.itemsize != self.archive.size(f"data/{found.key}"):
            raise Refused(f"the storage {found.key} of {numel} elements has another size in the file")
        if len(found.shape) != len(found.stride):
            raise Refused(f"a tensor of shape {found.shape} with strides {found.stride}")
        last = found.offset + sum((n - 1) * s for n, s in zip(found.shape, found.stride, strict=True))
        count = prod(found.shape)
        if count > numel or (count > 0 and last >= numel):
            raise Refused(f"a tensor of shape {found.shape} in a storage of {numel} elements")
        return found


class MappedFiles:
    """Maps files into memory, each once: pages are read as they are touched."""

    def __init__(self, pickles: PickleReader) -> None:
        self.pickles = pickles
        self._views: dict[Path, memoryview] = {}

    def torch_file(self, path: Path, start: int = 0, length: int | None = None) -> TorchFile:
        """Open a file of torch.save, or the one that lies within ``[start, start + length)`` of it.

        Raises CheckpointError.
        """
        view = self.view(path)
        end = len(view) if length is None else start + length
        if end > len(view):
            raise refused(str(path), f"bytes {start} to {end} of a file of {len(view)}")
        return TorchFile(view[start:end], self.pickles, str(path))

    def view(self, path: Path) -> memoryview:
        """Return the bytes of a file. Raises CheckpointError."""
        if path not in self._views:
            try:
                with open_regular(path) as file:
                    size = file.seek(0, 2)
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else bytearray(8)
            except FileNotFoundError:
                raise CheckpointError(
                    codes.CONVERT_INCOMPLETE("a file of the checkpoint is missing", str(path))
                ) from None
            self._views[path] = memoryview(mapped)
        return self._views[path]


@contextmanager
def refused_by_name(where: str) -> Iterator[None]:
    """Turn Refused raised inside into the CheckpointError that names the file."""
    try:
        yield
    except Refused as exc:
        raise refused(where, str(exc)) from None


def refused(where: str, found: str) -> CheckpointError:
    """Return the error of a file that is not read."""
    return CheckpointError(codes.CONVERT_REFUSED(where, found))
