"""Untrained tensors of the folder that a run started from, read a part at a time.

Exports copy tensors that are not trained, bit for bit. A checkpoint records their folder and a sha256 of
names, types, shapes and bytes; it holds no copy. Values are read instead of mapped, since mapped pages would
count as this process's memory until the file is closed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.format.safetensors_file import ByteRange, TensorEntry, read_header, read_rows
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.start_folder import path_of_run
from paceline.core.errors import CheckpointError
from paceline.core.files import open_file, read_bytes
from paceline.core.json_types import JsonObject, as_object
from paceline.models.loading.model_source import weights_folder
from paceline.models.loading.safetensors_files import StoredSlice, TensorFiles
from paceline.plan.model.files.safetensors_headers import weights_of

_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def carried_entries(reader: CheckpointReader) -> list[TensorEntry]:
    """Return the carried tensors of the checkpoint's model, to be read from their folder when written.

    Raises CheckpointError ``export.carried`` unless the folder holds exactly the tensors that the run started
    from.
    """
    state = as_object(reader.state.get(STATE_KEY))
    names = state.get("names")
    if not isinstance(names, list) or not names:
        return []
    source = str(state.get("name_or_path"))
    try:
        places = places_of(_folder(reader, state), reader.path)
        missing = [str(n) for n in names if n not in places]
        carried = {str(n): places[str(n)] for n in names if n in places}
        if missing:
            raise _changed(source, f"{len(missing)} are not there: {', '.join(missing[:4])}", len(names))
        if (digest := digest_of(carried)) != state.get("sha256"):
            raise _changed(source, f"sha256 {digest[:12]}, was {str(state.get('sha256'))[:12]}", len(names))
    except (OSError, ValueError) as error:
        raise _changed(source, str(error)[:300], len(names)) from error
    return [
        TensorEntry(name, tensor.slot.dtype, tensor.slot.shape, partial(_load, tensor))
        for name, tensor in carried.items()
    ]


def carried_files(reader: CheckpointReader) -> dict[str, bytes]:
    """Return the settings files of image, video and audio processors next to the carried tensors."""
    state = as_object(reader.state.get(STATE_KEY))
    if not state.get("names"):
        return {}
    folder = _folder(reader, state)
    return {name: read_bytes(folder / name) for name in _PROCESSORS if (folder / name).is_file()}


def _folder(reader: CheckpointReader, carried: JsonObject) -> Path:
    """Return the folder that the run's carried tensors are in. Raises CheckpointError and OSError."""
    name, names = str(carried.get("name_or_path")), carried.get("names")
    try:
        name = path_of_run(name, reader.state, reader.path, "model.name_or_path")
    except CheckpointError as error:
        count = len(names) if isinstance(names, list) else 0
        raise _changed(name, error.diagnostics[0].found, count) from error
    revision = carried.get("revision")
    return weights_folder(name, None if revision is None else str(revision))


def _load(place: TensorBytes) -> Tensor:
    with open_file(place.file) as file:
        return read_rows(file, place.slot, 0, place.slot.shape[0] if place.slot.shape else 1)


def _changed(source: str, difference: str, count: int) -> CheckpointError:
    return CheckpointError(codes.EXPORT_CARRIED(source, difference, count=count))


STATE_KEY = "carried"  # in a checkpoint's state
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TensorBytes:
    """Where a tensor's bytes are."""

    file: Path
    slot: ByteRange


def carried_state(folder: Path, name: str, revision: str | None, names: Collection[str]) -> JsonObject:
    """Return a checkpoint's record of the tensors ``names`` of ``folder``; reads all their bytes.

    ``name`` and ``revision``: how the config names the folder. Raises OSError and CheckpointError.
    """
    places = places_of(folder, folder)
    size = sum(places[n].slot.end - places[n].slot.start for n in names)
    return {
        "name_or_path": name,
        "revision": revision,
        "names": sorted(names),
        "num_bytes": size,
        "sha256": digest_of({n: places[n] for n in names}),
    }


def places_of(folder: Path, where: Path) -> dict[str, TensorBytes]:
    """Return every tensor of the folder's weight files. Raises OSError and CheckpointError."""
    places: dict[str, TensorBytes] = {}
    for path in weights_of(folder, []):
        places |= places_in(path, where)
    return places


def places_in(path: Path, where: Path) -> dict[str, TensorBytes]:
    """Return every tensor of a safetensors file. Raises OSError and CheckpointError."""
    with open_file(path) as file:
        slots, _, _ = read_header(file, where, str(path))
    return {name: TensorBytes(path, slot) for name, slot in slots.items()}


def digest_of(places: Mapping[str, TensorBytes]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(places.items()):
        digest.update(f"{name}|{tensor.slot.dtype}|{list(tensor.slot.shape)}|".encode())
        for block in _blocks(tensor):
            digest.update(block)
    return digest.hexdigest()


def _blocks(tensor: TensorBytes) -> Iterator[bytes]:
    with open_file(tensor.file) as file:
        file.seek(tensor.slot.start)
        left = tensor.slot.end - tensor.slot.start
        while left:
            block = file.read(min(left, _BLOCK_BYTES))
            if not block:
                raise OSError(f"{tensor.file} ended early")
            left -= len(block)
            yield block


_OPEN = 16  # files at a time


class FolderReads(TensorFiles):
    """Safetensors files, opened on demand; a context manager."""

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
    """A tensor of an open file: reads the requested rows, then selects columns."""

    def __init__(self, file: BinaryIO, slot: ByteRange) -> None:
        self._file, self._slot = file, slot

    def get_shape(self) -> list[int]:
        return list(self._slot.shape)

    def __getitem__(self, where: tuple[slice, ...]) -> Tensor:
        if not self._slot.shape:
            return read_rows(self._file, self._slot, 0, 1)
        first, end, _ = where[0].indices(self._slot.shape[0])
        return read_rows(self._file, self._slot, first, max(0, end - first))[(slice(None), *where[1:])]
