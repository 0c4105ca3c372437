"""A model folder's tensors read into memory of our own, a part at a time: the pages of a mapped file would
count as this process's memory until it is closed.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch import Tensor

from paceline.checkpoint.format.safetensors_file import ByteRange, read_header, read_rows
from paceline.core.files import open_file
from paceline.models.loading.safetensors_files import StoredSlice, TensorFiles

_OPEN = 16  # files at a time


class FolderReads(TensorFiles):
    """Safetensors files, opened when wanted; a context manager."""

    def __init__(self) -> None:
        self._slots: dict[Path, dict[str, ByteRange]] = {}
        self._files: dict[Path, BinaryIO] = {}

    def slice_of(self, file: Path, name: str) -> StoredSlice:
        return _Stored(self._opened(file), self._slot(file, name))

    def values_of(self, file: Path, name: str, index: Tensor) -> Tensor:
        slot, descriptor = self._slot(file, name), self._opened(file).fileno()
        size = slot.dtype.itemsize
        raw = bytearray(b"".join(os.pread(descriptor, size, slot.start + i * size) for i in index.tolist()))
        if len(raw) != size * len(index):
            raise OSError(f"{file} ended early")
        return torch.frombuffer(raw, dtype=slot.dtype) if raw else torch.empty(0, dtype=slot.dtype)

    def _slot(self, file: Path, name: str) -> ByteRange:
        if file not in self._slots:
            self._slots[file] = read_header(self._opened(file), file.parent, file.name)[0]
        if name not in self._slots[file]:
            raise OSError(f"{file} has no tensor {name}")
        return self._slots[file][name]

    def _opened(self, file: Path) -> BinaryIO:
        if file not in self._files:
            while len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files))).close()
            self._files[file] = open_file(file)
        return self._files[file]

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> FolderReads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stored(StoredSlice):
    """A tensor of an open file: the rows that are wanted are read, then their columns are cut."""

    def __init__(self, file: BinaryIO, slot: ByteRange) -> None:
        self._file, self._slot = file, slot

    def get_shape(self) -> list[int]:
        return list(self._slot.shape)

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        if not self._slot.shape:
            return read_rows(self._file, self._slot, 0, 1)
        first, end, _ = where[0].indices(self._slot.shape[0])
        return read_rows(self._file, self._slot, first, max(0, end - first))[(slice(None), *where[1:])]
