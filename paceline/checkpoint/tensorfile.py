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

from paceline.checkpoint.blocks import Grain
from paceline.checkpoint.disk import CrashPoint, never, write_fresh
from paceline.checkpoint.manifest_format import FileEntry
from paceline.checkpoint.refused import damaged
from paceline.checkpoint.strictjson import parse_object
from paceline.core.json_types import Json, JsonObject, as_object

MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_DIMS = 16

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to write: ``load`` is called once, when it is written, and may return it on any device.

    ``beside``: tensors with the same word are written one after the other, because they are made together.
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
class Slot:
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
    grain: Grain | None = None,
) -> FileEntry:
    """Write a new safetensors file, with at most one tensor in memory beyond those that ``load`` refers to.

    With ``grain`` the entry has the hashes of blocks, else one sha256. Raises OSError and ValueError.
    """
    entry = write_fresh(path, _blocks(in_order(entries), metadata), crash, grain)
    return replace(entry, data=len(_header(in_order(entries), metadata))) if grain is not None else entry


def in_order(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return the tensors in the order of the file, which keeps them aligned."""
    return sorted(entries, key=lambda e: (-e.dtype.itemsize, e.beside or e.name, e.name))


def starts_of(entries: Sequence[TensorEntry]) -> dict[str, tuple[str, int]]:
    """Return name → (the header's word for its dtype, first byte after the header)."""
    places, at = dict[str, tuple[str, int]](), 0
    for entry in in_order(entries):
        places[entry.name] = (_NAMES[entry.dtype], at)
        at += entry.num_bytes
    return places


def file_bytes(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> int:
    """Return the size that the file will have."""
    return len(_header(entries, metadata)) + sum(e.num_bytes for e in entries)


def read_header(file: BinaryIO, checkpoint: Path, name: str) -> tuple[dict[str, Slot], dict[str, str], int]:
    """Return the tensors and the metadata of an open file, and the bytes before the first tensor.

    Raises CheckpointError unless the tensors fill the file exactly, without gaps or overlaps.
    """

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise damaged(checkpoint, name, what[:300])

    # Length, then header, then every slot against the file's size.
    size = os.fstat(file.fileno()).st_size
    need(size >= 8, f"{size} bytes are not a safetensors file")
    length = int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
    need(
        length <= min(MAX_HEADER_BYTES, size - 8),
        f"a header of {length} bytes in a file of {size} is not a safetensors header",
    )
    raw = os.pread(file.fileno(), length, 8)
    need(raw[:1] == b"{", "the header is not a safetensors header")
    header = parse_object(raw, str(checkpoint / name), max_bytes=MAX_HEADER_BYTES, max_depth=5)
    metadata = as_object(given := header.pop("__metadata__", {}))
    texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    need(metadata == given and texts == metadata, "__metadata__ contains something other than text")
    slots: dict[str, Slot] = {}
    for key, info in header.items():
        slot = _slot(as_object(info), 8 + length)
        need(slot is not None, f"the entry of tensor {key!r}: {json.dumps(info)}")
        assert slot is not None
        slots[key] = slot
    end = 8 + length
    for key, slot in sorted(slots.items(), key=lambda item: (item[1].start, item[1].end)):
        need(slot.start == end, f"tensor {key!r} overlaps another or leaves a gap")
        end = slot.end
    need(end == size, f"the tensors end at byte {end}, but the file at {size}")
    return slots, texts, 8 + length


def read_rows(file: BinaryIO, slot: Slot, first: int, count: int) -> Tensor:
    """Read rows ``[first, first + count)`` of dim 0 of a tensor (a scalar: everything) to the CPU."""

    def fill(view: memoryview, at: int) -> None:
        while view:
            got = os.preadv(file.fileno(), [view], at)
            if got == 0:
                raise OSError(f"{file.name} ended early")
            view, at = view[got:], at + got

    return rows_by(fill, slot, first, count)


def rows_by(fill: Callable[[memoryview, int], None], slot: Slot, first: int, count: int) -> Tensor:
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
    at = 0
    for entry in entries:
        if entry.name in header:
            raise ValueError(f"the tensor {entry.name} is given twice")
        if entry.dtype not in _NAMES:
            raise ValueError(f"{entry.name}: safetensors does not support {entry.dtype}")
        header[entry.name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.num_bytes],
        }
        at += entry.num_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes: too many tensors for one file")
    return len(text).to_bytes(8, "little") + text


def _slot(info: JsonObject, base: int) -> Slot | None:
    """Return the slot of one header entry, or None if it is invalid (Python integers cannot overflow)."""
    if set(info) != {"dtype", "shape", "data_offsets"}:
        return None
    dtype = DTYPES.get(str(info["dtype"]))
    shape, offsets = _sizes(info["shape"]), _sizes(info["data_offsets"])
    if (
        dtype is None
        or shape is None
        or offsets is None
        or len(shape) > MAX_DIMS
        or len(offsets) != 2
        or offsets[1] - offsets[0] != prod(shape) * dtype.itemsize
    ):
        return None
    return Slot(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _sizes(value: Json) -> list[int] | None:
    """Return non-negative integers, or None for anything else."""
    if not isinstance(value, list):
        return None
    sizes = [n for n in value if type(n) is int and 0 <= n < 1 << 53]
    return sizes if len(sizes) == len(value) else None


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor without a copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
