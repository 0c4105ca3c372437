"""Tensors in files of torch.save: described by inert values, read from the mapped file on demand."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

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
    as_integer,
    as_shape,
)
from paceline.checkpoint.format.safetensors_file import DTYPES
from paceline.checkpoint.format.verify_files import open_regular
from paceline.core.errors import CheckpointError


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of known dtype and shape; ``load`` reads it. Raises CheckpointError."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], Tensor]

    @staticmethod
    def number(value: float) -> LazyTensor:
        """Return a number as an optimizer's ``step`` is kept: a float32 scalar."""
        return LazyTensor(torch.float32, (), lambda: torch.tensor(value, dtype=torch.float32))


@dataclass(frozen=True)
class _View:
    """A view of an archive's storage ``key``: ``offset`` and ``stride`` count elements of it."""

    archive: TorchArchive
    dtype: torch.dtype
    key: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    where: str

    def __call__(self) -> Tensor:
        """Return the tensor; its pages are read from the file as they are touched. Raises CheckpointError."""
        with refused_by_name(self.where):
            data = self.archive.read(f"data/{self.key}")
        if not prod(self.shape):
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        if flat.data_ptr() % self.dtype.itemsize:  # torch views no unaligned memory
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

    def tensor(self, value: Value) -> LazyTensor | None:
        """Return the tensor that ``value`` describes, or None. Raises CheckpointError."""
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

    def number(self, value: Value) -> float | None:
        """Return a number, or that of a tensor of one element; None for anything else."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        tensor = self.tensor(value)
        return None if tensor is None or prod(tensor.shape) != 1 else float(tensor.load())

    def _stored(self, value: PickledCall) -> LazyTensor:
        if len(value.args) < 4:
            raise Refused("a tensor without its shape")
        storage, offset, shape, stride = value.args[:4]
        record = storage.value if isinstance(storage, PickledId) else None
        if not isinstance(record, tuple) or len(record) != 5 or not isinstance(record[2], str):
            raise Refused("a tensor without its storage")
        kind = record[1].name if isinstance(record[1], PickledName) else ""
        if kind not in STORAGES:
            raise Refused(f"a storage of the kind {kind!r}")
        numel = as_integer(record[4])
        view = _View(
            self.archive,
            DTYPES[STORAGES[kind]],
            record[2],
            as_integer(offset),
            as_shape(shape),
            as_shape(stride),
            self.where,
        )
        if numel * view.dtype.itemsize != self.archive.size(f"data/{view.key}"):
            raise Refused(f"the storage {view.key} of {numel} elements has another size in the file")
        if len(view.shape) != len(view.stride):
            raise Refused(f"a tensor of shape {view.shape} with strides {view.stride}")
        # The last element is checked here: as_strided would read whatever lies behind the storage.
        last = view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True))
        count = prod(view.shape)
        if count > numel or (count > 0 and last >= numel):
            raise Refused(f"a tensor of shape {view.shape} in a storage of {numel} elements")
        return LazyTensor(view.dtype, view.shape, view)


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
            with open_source(path) as file:
                size = file.seek(0, 2)
                # Copy-on-write: torch.frombuffer wants writable memory; an empty file cannot be mapped.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else bytearray(8)
            self._views[path] = memoryview(mapped)
        return self._views[path]


def open_source(path: Path) -> BinaryIO:
    """Open a file of a foreign checkpoint. Raises CheckpointError, also if it is missing."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        problem = "a file of the checkpoint is missing"
        raise CheckpointError(
            codes.CONVERT_INCOMPLETE(problem, str(path), "", "copy the whole folder")
        ) from None


@contextmanager
def refused_by_name(where: str) -> Iterator[None]:
    """Turn Refused raised inside into the CheckpointError that names the file."""
    try:
        yield
    except Refused as exc:
        raise refused(where, str(exc)) from None


def refused(where: str, reason: str) -> CheckpointError:
    """Return the error of a file that is not read."""
    return CheckpointError(codes.CONVERT_REFUSED(where, reason))
