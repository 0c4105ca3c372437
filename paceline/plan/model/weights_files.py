"""Check a model folder's files before launch: valid JSON, safetensors headers that match their files.

No torch.

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

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import open_file
from paceline.core.json_types import Json, JsonObject
from paceline.plan import codes

MAX_CONFIG_BYTES = 16 * 2**20
MAX_INDEX_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's limit
INDEX = "model.safetensors.index.json"
#: bits of an element, by the word of a safetensors header
STORED_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}


def weights_findings(folder: Path) -> list[Diagnostic]:
    """Return problems of a folder's safetensors: damaged files."""
    found: list[Diagnostic] = []
    for file in weights_of(folder, found):
        try:
            header_of(file)
        except (OSError, ValueError) as error:
            found.append(_damaged(file, str(error)))
    return found


def weights_of(folder: Path, found: list[Diagnostic]) -> list[Path]:
    """Return the weight files: those in the index, else ``model.safetensors``.

    Index problems go to ``found``.
    """
    index = folder / INDEX
    if not index.exists():
        return [folder / "model.safetensors"] if (folder / "model.safetensors").exists() else []
    try:
        contents = read_json(index, MAX_INDEX_BYTES)
        weight_map = contents.get("weight_map") if isinstance(contents, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError("it has no weight_map")
        files = sorted({name for name in weight_map.values() if isinstance(name, str)})
        if any(not isinstance(name, str) for name in weight_map.values()) or any(
            os.sep in n or n in ("", ".", "..") for n in files
        ):
            raise ValueError("weight_map names something other than files of this folder")
    except (OSError, ValueError) as error:
        found.append(_damaged(index, str(error)))
        return []
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        found.append(
            _damaged(index, f"{len(missing)} of {len(files)} files do not exist: {', '.join(missing[:3])}")
        )
        return []
    return [folder / name for name in files]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file. ``span``: [start, end) of its bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    span: tuple[int, int]


def header_of(file: Path) -> dict[str, StoredTensor]:
    """Return a safetensors file's tensors by name.

    Raises ValueError if the header is invalid or does not match the file, and OSError.
    """
    size = file.stat().st_size
    with open_file(file) as opened:
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"the file has {size:,} bytes, but its header would have {length:,}")
        header = parse_json(opened.read(length), once=True)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    tensors = {name: _stored(name, entry) for name, entry in header.items() if name != "__metadata__"}
    spans = sorted(tensor.span for tensor in tensors.values())
    end = size - 8 - length
    borders = [(0, 0), *spans, (end, end)]
    if any(a[1] != b[0] for a, b in pairwise(borders)):
        raise ValueError(
            f"its tensors overlap, leave gaps, or do not end where the file ends ({end:,} bytes of data)"
        )
    return tensors


def _stored(name: str, entry: Json) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {name!r:.80} is not an object")
    kind, shape, offsets = entry["dtype"], _numbers(entry["shape"]), _numbers(entry["data_offsets"])
    if not isinstance(kind, str) or kind not in STORED_BITS:
        raise ValueError(f"{name!r:.80} has the dtype {kind!r:.40}")
    if shape is None or offsets is None:
        raise ValueError(f"{name!r:.80} has no shape, or no offsets")
    if (
        len(shape) > 64
        or len(offsets) != 2
        or 8 * (offsets[1] - offsets[0]) != math.prod(shape) * STORED_BITS[kind]
    ):
        raise ValueError(f"the size of {name!r:.80} does not match its shape and dtype")
    return StoredTensor(kind, shape, (offsets[0], offsets[1]))


def _numbers(value: Json) -> tuple[int, ...] | None:
    """Return a list of whole numbers from 0 to 2**63 - 1; None for anything else."""
    if not isinstance(value, list):
        return None
    numbers = tuple(n for n in value if type(n) is int and 0 <= n < 2**63)
    return numbers if len(numbers) == len(value) else None


def read_json(file: Path, most: int) -> Json:
    """Return a JSON file of at most ``most`` bytes. Raises OSError, or ValueError if it is not JSON."""
    with open_file(file) as opened:
        # read(n) allocates n bytes first
        data = opened.read(min(most, os.fstat(opened.fileno()).st_size) + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return parse_json(data)


def parse_json(data: bytes, *, once: bool = False) -> Json:
    """Parse UTF-8 JSON; with ``once`` duplicate keys are errors.

    Raises ValueError, also if nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: list[tuple[str, Json]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a key appears twice: {next(n for n in names if names.count(n) > 1)!r:.80}")
    return found


def _damaged(file: Path, found: str) -> Diagnostic:
    what = "this file of the model is damaged"
    return codes.PLAN_MODEL_FILE(
        what, str(file), found, "download the model again (hf download …), or use another folder"
    )
