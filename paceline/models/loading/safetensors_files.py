"""Read safetensors files in parts; parse each header once, not once a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

_OPEN = 4  # files at a time: reading goes through a model in order


class StoredSlice(Protocol):
    """A tensor of a file; indexing reads only that part."""

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor: ...


class TensorFiles(Protocol):
    """Safetensors files of which tensors are read in parts."""

    def slice_of(self, file: Path, name: str) -> StoredSlice:
        """Return the tensor ``name`` of ``file``. Raises OSError, SafetensorError."""
        ...

    def values_of(self, file: Path, name: str, index: Tensor) -> Tensor:
        """Return its values at these places (int64 [n], counted in its flat form). Raises as ``slice_of``."""
        ...

    def read_by(self, opened: TensorFiles) -> TensorFiles:
        """Return the same tensors, read from the disk by ``opened``."""
        return opened


class _OpenFile(Protocol):
    def get_slice(self, name: str) -> StoredSlice: ...


class OpenedFiles(TensorFiles):
    """The files that were read last, mapped into memory."""

    def __init__(self) -> None:
        self._files: dict[Path, _OpenFile] = {}

    def slice_of(self, file: Path, name: str) -> StoredSlice:
        from safetensors import safe_open

        opened = self._files.pop(file, None)
        if opened is None:
            opened = cast(_OpenFile, safe_open(file, framework="pt"))
            while len(self._files) >= _OPEN:
                del self._files[next(iter(self._files))]
        self._files[file] = opened
        return opened.get_slice(name)

    def values_of(self, file: Path, name: str, index: Tensor) -> Tensor:
        stored = self.slice_of(file, name)
        return stored[tuple(slice(0, n) for n in stored.get_shape())].flatten()[index]
