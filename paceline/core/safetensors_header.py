"""Read a safetensors file's header, and check it against the file. No torch.

Format: https://huggingface.co/docs/safetensors#format: 8 bytes of length, little-endian, a JSON object of
that length, then the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from paceline.core.files import open_file
from paceline.core.json_types import Json, as_object, parse_json

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's limit
MAX_DIMS = 64  # torch's limit
# JSON numbers above are not exact in every reader
_MAX_SIZE = 1 << 53
#: a header's word for a dtype: torch's name for it (empty: it has none), bits of an element
STORED_DTYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F6_E2M3": ("", 6),
    "F6_E3M2": ("", 6),
    "F4": ("", 4),
}
#: dtypes of which any part is a tensor's values
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file. ``span``: [start, end) of its bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    span: tuple[int, int]


@dataclass(frozen=True)
class SafetensorsHeader:
    """The tensors of a file by name, its metadata, and the offset of its data (bytes)."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]
    start: int


def header_of(path: Path) -> dict[str, StoredTensor]:
    """Return a file's tensors by name. Raises OSError, and ValueError as ``read_header``."""
    with open_file(path) as file:
        return read_header(file).tensors


def read_header(file: BinaryIO) -> SafetensorsHeader:
    """Return the header of an open file.

    Raises ValueError unless the header is valid and its tensors fill the file, without gaps or overlaps.
    """
    size = os.fstat(file.fileno()).st_size
    start = os.pread(file.fileno(), 8, 0)
    length = int.from_bytes(start, "little")
    # The length is checked before as much memory is allocated.
    if len(start) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"the file has {size:,} bytes, but its header would have {length:,}")
    header = parse_json(os.pread(file.fileno(), length, 8), unique=True)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    metadata = as_object(raw := header.pop("__metadata__", {}))
    texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    if metadata != raw or texts != metadata:
        raise ValueError("__metadata__ contains something other than text")
    tensors = {name: _stored(name, entry) for name, entry in header.items()}
    end = size - 8 - length
    borders = [(0, 0), *sorted(tensor.span for tensor in tensors.values()), (end, end)]
    if any(a[1] != b[0] for a, b in pairwise(borders)):
        what = "its tensors overlap, leave gaps, or do not end where the file ends"
        raise ValueError(f"{what} ({end:,} bytes of data)")
    return SafetensorsHeader(tensors, texts, 8 + length)


def _stored(name: str, entry: Json) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {name!r:.80} is not a tensor's: {json.dumps(entry):.120}")
    kind, shape, offsets = entry["dtype"], _numbers(entry["shape"]), _numbers(entry["data_offsets"])
    if not isinstance(kind, str) or kind not in STORED_DTYPES:
        raise ValueError(f"{name!r:.80} has the dtype {kind!r:.40}")
    if shape is None or offsets is None or len(shape) > MAX_DIMS or len(offsets) != 2:
        raise ValueError(f"{name!r:.80} has no valid shape, or no offsets")
    if 8 * (offsets[1] - offsets[0]) != math.prod(shape) * STORED_DTYPES[kind][1]:
        raise ValueError(f"the size of {name!r:.80} does not match its shape and dtype")
    return StoredTensor(kind, shape, (offsets[0], offsets[1]))


def _numbers(value: Json) -> tuple[int, ...] | None:
    """Return a list of sizes (Python integers cannot overflow); None for anything else."""
    if not isinstance(value, list):
        return None
    numbers = tuple(n for n in value if type(n) is int and 0 <= n < _MAX_SIZE)
    return numbers if len(numbers) == len(value) else None
