"""Safetensors files: written tensor by tensor, read block by block, headers checked before allocation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.format.durable_files import CrashPoint, never, write_fresh
from paceline.checkpoint.format.manifest import FileEntry
from paceline.core import safetensors_header
from paceline.core.json_types import Json
from paceline.core.safetensors_header import MAX_HEADER_BYTES, STORED_DTYPES

#: torch's dtype of a header's word, for those that torch has
DTYPES: Mapping[str, torch.dtype] = {
    word: getattr(torch, name) for word, (name, _) in STORED_DTYPES.items() if name
}
#: the inverse
DTYPE_WORDS = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to write: ``load`` is called once, when it is written, and may return it on any device.

    ``beside``: tensors with the same value are written consecutively, because they are made together.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], Tensor]
    beside: str = ""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ByteRange:
    """A tensor in a file: bytes ``[start, end)`` from the beginning of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def write_tensors(
    path: Path,
    entries: Sequence[TensorEntry],
    metadata: Mapping[str, str],
    crash: CrashPoint = never,
    grain: BlockSizes | None = None,
) -> FileEntry:
    """Write a new safetensors file, with at most one tensor in memory beyond those that ``load`` refers to.

    With ``grain`` the entry has the hashes of blocks, else one sha256. Raises OSError and ValueError.
    """
    entry = write_fresh(path, _blocks(in_order(entries), metadata), crash, grain)
    return replace(entry, data=len(_header(in_order(entries), metadata))) if grain is not None else entry


def in_order(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return the tensors in the order of the file, which keeps them aligned."""
    # Wide dtypes first: each tensor then begins at a multiple of its item size.
    return sorted(entries, key=lambda e: (-e.dtype.itemsize, e.beside or e.name, e.name))


def starts_of(entries: Sequence[TensorEntry]) -> dict[str, tuple[str, int]]:
    """Return name → (dtype name in the header, first byte after the header)."""
    places, begin = dict[str, tuple[str, int]](), 0
    for entry in in_order(entries):
        places[entry.name] = (DTYPE_WORDS[entry.dtype], begin)
        begin += entry.num_bytes
    return places


def file_bytes(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> int:
    """Return the size that the file will have."""
    return len(_header(entries, metadata)) + sum(e.num_bytes for e in entries)


def read_header(
    file: BinaryIO, checkpoint: Path, name: str
) -> tuple[dict[str, ByteRange], dict[str, str], int]:
    """Return the tensors and the metadata of an open file, and the bytes before the first tensor.

    Raises CheckpointError unless the tensors fill the file exactly, without gaps or overlaps.
    """

    try:
        header = safetensors_header.read_header(file)
    except ValueError as error:
        raise damaged(checkpoint, name, str(error)[:300]) from None
    if unknown := {t.dtype for t in header.tensors.values()} - DTYPES.keys():
        raise damaged(checkpoint, name, f"torch has no dtype {', '.join(sorted(unknown))}")
    slots = {
        key: ByteRange(DTYPES[t.dtype], t.shape, header.start + t.span[0], header.start + t.span[1])
        for key, t in header.tensors.items()
    }
    return slots, header.metadata, header.start


def read_rows(file: BinaryIO, slot: ByteRange, first: int, count: int) -> Tensor:
    """Read rows ``[first, first + count)`` of dim 0 of a tensor (a scalar: everything) to the CPU."""

    def fill(view: memoryview, at: int) -> None:
        while view:
            got = os.preadv(file.fileno(), [view], at)
            if got == 0:
                raise OSError(f"{file.name} ended early")
            view, at = view[got:], at + got

    return rows_by(fill, slot, first, count)


def rows_by(fill: Callable[[memoryview, int], None], slot: ByteRange, first: int, count: int) -> Tensor:
    """As ``read_rows``, with ``fill(view, at)`` to read the bytes at ``at`` of the slot's file."""
    shape = (count, *slot.shape[1:]) if slot.shape else ()
    row_bytes = prod(slot.shape[1:]) * slot.dtype.itemsize
    tensor = torch.empty(shape, dtype=slot.dtype)
    if view := _bytes_of(tensor):
        fill(view, slot.start + first * row_bytes)
    return tensor


def _blocks(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    yield _header(entries, metadata)
    for entry in entries:
        tensor = entry.load().detach()
        if tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
            raise ValueError(
                f"{entry.name}: expected {entry.dtype} {entry.shape}, got"
                f" {tensor.dtype} {tuple(tensor.shape)}"
            )
        tensor = tensor.contiguous().cpu()
        yield _bytes_of(tensor)
        del tensor  # before the next is made beside it


def _header(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Json] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for entry in entries:
        if entry.name in header:
            raise ValueError(f"the tensor {entry.name} is given twice")
        if entry.dtype not in DTYPE_WORDS:
            raise ValueError(f"{entry.name}: safetensors does not support {entry.dtype}")
        header[entry.name] = {
            "dtype": DTYPE_WORDS[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, begin + entry.num_bytes],
        }
        begin += entry.num_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # The format pads with spaces, so that tensors begin aligned to 8 bytes.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes: too many tensors for one file")
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor without a copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
