"""What one rank writes in a save: from shards to entries of its file, and to the index in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from torch import Tensor

from paceline.checkpoint.format.block_hashes import Grain
from paceline.checkpoint.format.manifest import FileEntry, Manifest, shards_of
from paceline.checkpoint.format.safetensors_file import TensorEntry, starts_of
from paceline.checkpoint.format.tensor_index import BlockRow, TensorRows, build_index
from paceline.checkpoint.format.tensor_names import TensorName, encode_place
from paceline.protocols.shard import Shard

TensorPlaces = dict[str, tuple[str, int, list[int], list[int], list[int]]]


class WrittenFile(TypedDict):
    """A ``FileEntry`` on its way to rank 0."""

    bytes: int
    sha256: str
    data: int
    blocks: list[str]


class Written(TypedDict):
    """What one rank wrote: its files, and the tensors of its shard by encoded name: dtype, first byte after
    the header, whole shape, offsets and shape of the block.
    """

    files: dict[str, WrittenFile]
    tensors: TensorPlaces


def entries_of(shards: list[Shard]) -> tuple[list[TensorEntry], dict[str, str]]:
    """Return the entries to write for these shards, and the offsets of blocks that are not full tensors."""
    entries: list[TensorEntry] = []
    metadata = {"format": "pt"}
    for shard in shards:
        tensor = shard.tensor
        name = TensorName(shard.role, shard.kind, shard.name).encode()
        shape = tuple(tensor.shape)
        entries.append(TensorEntry(name, tensor.dtype, shape, _given(tensor)))
        if shape != tuple(shard.global_shape):
            metadata[name] = encode_place(tuple(shard.global_shape), tuple(shard.offsets))
    return entries, metadata


def places_of(shards: list[Shard], entries: list[TensorEntry]) -> TensorPlaces:
    """Return where this rank's tensors lie in its file, as ``Written`` has them."""
    starts = starts_of(entries)
    return {
        e.name: (*starts[e.name], list(shard.global_shape), list(shard.offsets), list(e.shape))
        for shard, e in zip(shards, entries, strict=True)
    }


def index_of(written: list[Written], shards: Sequence[str]) -> dict[str, TensorRows]:
    """Return the index of all shards. Raises ValueError."""
    numbers = {name: at for at, name in enumerate(shards)}
    tables = []
    for of_rank in written:
        file = next((numbers[name] for name in of_rank["files"] if name in numbers), 0)
        tables.append(
            {
                name: (dtype, tuple(shape), BlockRow(file, start, tuple(offsets), tuple(sizes)))
                for name, (dtype, start, shape, offsets, sizes) in of_rank["tensors"].items()
            }
        )
    return build_index(tables)


def manifest_of(
    step: int, sequence: int, world_size: int, created: float, written: list[Written], grain: Grain
) -> Manifest:
    """Return the manifest of what all ranks wrote. Raises ValueError."""
    files = {
        name: FileEntry(e["bytes"], e["sha256"], e["data"], tuple(e["blocks"]))
        for of_rank in written
        for name, e in of_rank["files"].items()
    }
    tensors = index_of(written, shards_of(files))
    return Manifest(step, sequence, world_size, created, files, tensors=tensors, grain=grain)


def _given(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor
