"""Tensors that a run does not train and its exports copy, bit for bit, from the model folder it started from.

A checkpoint records where they are and a sha256 of their names, types, shapes and bytes; it holds no copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.format.safetensors_file import Slot, read_header
from paceline.core.files import open_file
from paceline.core.json_types import JsonObject
from paceline.plan.model.files.safetensors_headers import weights_of

STATE_KEY = "carried"  # in a checkpoint's state
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TensorBytes:
    """Where a tensor's bytes are."""

    file: Path
    slot: Slot


def carried_state(folder: Path, name: str, revision: str | None, names: Collection[str]) -> JsonObject:
    """Return what a checkpoint records of the tensors ``names`` of ``folder``; reads all their bytes.

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


def is_about(state: JsonObject, name: str, revision: str | None, names: Collection[str]) -> bool:
    """Whether ``state``, of a checkpoint, was recorded of these tensors of this folder."""
    recorded = (state.get("name_or_path"), state.get("revision"), state.get("names"))
    return recorded == (name, revision, sorted(names))


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
    for name, place in sorted(places.items()):
        digest.update(f"{name}|{place.slot.dtype}|{list(place.slot.shape)}|".encode())
        for block in _blocks(place):
            digest.update(block)
    return digest.hexdigest()


def _blocks(place: TensorBytes) -> Iterator[bytes]:
    with open_file(place.file) as file:
        file.seek(place.slot.start)
        left = place.slot.end - place.slot.start
        while left:
            block = file.read(min(left, _BLOCK_BYTES))
            if not block:
                raise OSError(f"{place.file} ended early")
            left -= len(block)
            yield block
