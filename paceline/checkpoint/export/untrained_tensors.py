"""Tensors that a run does not train: its exports copy them, bit for bit, from the model it started from.

A checkpoint records where they are and a sha256 of their names, types, shapes and bytes; it holds no copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.format.safetensors_file import ByteRange, TensorEntry, read_header, read_rows
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.files import open_file, read_bytes
from paceline.core.json_types import JsonObject, as_object
from paceline.models.loading.model_source import weights_folder
from paceline.plan.model.files.safetensors_headers import weights_of

_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def carried_entries(reader: CheckpointReader) -> list[TensorEntry]:
    """Return the carried tensors of the checkpoint's model, to be read from their folder when written.

    Raises CheckpointError ``export.carried`` unless the folder holds exactly what the run started from.
    """
    state = as_object(reader.state.get(STATE_KEY))
    names = state.get("names")
    if not isinstance(names, list) or not names:
        return []
    source, revision = str(state.get("name_or_path")), state.get("revision")
    try:
        places = places_of(weights_folder(source, None if revision is None else str(revision)), reader.path)
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
    """Return the settings of image, video and audio processors beside the carried tensors."""
    state = as_object(reader.state.get(STATE_KEY))
    if not state.get("names"):
        return {}
    revision = state.get("revision")
    folder = weights_folder(str(state.get("name_or_path")), None if revision is None else str(revision))
    return {name: read_bytes(folder / name) for name in _PROCESSORS if (folder / name).is_file()}


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
