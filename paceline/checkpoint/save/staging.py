"""The staging folder of one save: opened by rank 0, filled by all ranks, renamed into view by rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.format.durable_files import CrashPoint, need_space, sync_folder, write_fresh
from paceline.checkpoint.format.manifest import (
    HF_FOLDER,
    MANIFEST,
    STATE,
    FileEntry,
    Manifest,
    folders_of,
    is_safe_name,
    shards_of,
)
from paceline.checkpoint.format.safetensors_file import TensorEntry, file_bytes, starts_of, write_tensors
from paceline.checkpoint.format.strict_json import dump_object
from paceline.checkpoint.format.tensor_index import (
    BlockRow,
    TensorName,
    TensorRows,
    build_index,
)
from paceline.checkpoint.format.verify_files import (
    CheckpointFolder,
    aside_name,
    leftover_hints,
    leftovers,
    scan,
    shard_name,
)
from paceline.checkpoint.save.retention import discard
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json
from paceline.protocols.shard import Shard


@dataclass(frozen=True)
class Stage:
    """The staging folder of one save, the same on every rank; ``final``: its name once it is published."""

    step: int
    nonce: str
    sequence: int
    folder: Path
    final: Path

    def fill(
        self, contents: Contents, rank: int, world_size: int, crash: CrashPoint, grain: BlockSizes
    ) -> RankFiles:
        """Write a rank's files; return their entries, and the places of tensors.

        Raises OSError and CheckpointError.
        """
        # Rank 0 has made it: a rank that does not see it is on another disk.
        if not self.folder.is_dir():
            raise CheckpointError(codes.CHECKPOINT_NOT_SHARED(str(self.folder)))
        written: dict[str, FileEntry] = {}
        if contents.entries:
            name = shard_name(rank, world_size)
            path = self.folder / name
            written[name] = write_tensors(path, contents.entries, contents.metadata, crash, grain)
        for folder in folders_of(contents.side):
            os.mkdir(self.folder / folder)
        for name, content in contents.side.items():
            written[name] = write_fresh(self.folder / name, [content])
        crash("files_written")
        return {
            "files": {
                name: {"bytes": e.bytes, "sha256": e.sha256, "data": e.data, "blocks": list(e.blocks)}
                for name, e in written.items()
            },
            "tensors": contents.places,
        }

    def seal(self, manifest: Manifest, crash: CrashPoint) -> None:
        """Write the manifest, and make all names in the folder durable. Raises OSError."""
        write_fresh(self.folder / MANIFEST, [manifest.to_bytes()], crash)
        # Inner folders first: the outer one must not name what may still be lost.
        for folder in reversed(folders_of(manifest.files)):
            if (self.folder / folder).is_dir():  # another node may have them
                sync_folder(self.folder / folder)
        sync_folder(self.folder)
        crash("staging_synced")

    def rename(self, crash: CrashPoint) -> None:
        """Rename the folder to its final name; an older one of that step stays usable until then, and is then
        kept aside (``forget_old``).
        """
        final, aside = self.final, self.aside
        replacing = os.path.lexists(final)
        if replacing:
            os.rename(final, aside)
        try:
            if replacing:
                crash("old_aside")
                sync_folder(final.parent)  # or the new name could be durable without the old one's place
            # A folder with files cannot be replaced by a rename, so the older one moves first.
            os.rename(self.folder, final)
        except OSError:
            if replacing:
                # Back to the state before: the step stays usable under its name.
                os.rename(aside, final)
            raise
        crash("renamed")

    @property
    def aside(self) -> Path:
        """The temporary place of an older checkpoint of the step."""
        return self.final.with_name(aside_name("replaced", self.final.name, self.nonce))

    def forget_old(self) -> None:
        """Remove an older checkpoint of the step, once the new name is durable."""
        if os.path.lexists(self.aside):
            sync_folder(self.final.parent)
            discard(self.aside)

    def undo(self, *, renamed: bool) -> None:
        """Remove the folder; first undo ``rename`` if it was done. Raises OSError."""
        if renamed:
            os.rename(self.final, self.folder)
            if os.path.lexists(self.aside):
                os.rename(self.aside, self.final)
        discard(self.folder)


def open_stage(
    final: Path, step: int, num_bytes: int, crash: CrashPoint
) -> tuple[Stage, list[CheckpointFolder]]:
    """Remove leftovers of interrupted saves, make a folder; return it, and the existing checkpoints.

    For rank 0. The run's lock excludes others. Raises CheckpointError ``checkpoint.disk_full`` if the disk
    has no room for ``num_bytes``.
    """
    folder = final.parent
    checkpoints = scan(folder)
    for left in leftovers(folder, checkpoints):
        discard(left)
    for leftover_hint in leftover_hints(folder):
        leftover_hint.unlink(missing_ok=True)
    # Before any byte is written: a full disk then leaves no staging folder.
    need_space(folder, num_bytes)
    # A sequence, not the step: a resumed run may save a step anew.
    # Also of damaged ones: a sequence must never come twice.
    newest = max((f.age_key[0] for f in checkpoints), default=0)
    nonce = os.urandom(6).hex()
    name = aside_name("staging", final.name, nonce)
    os.mkdir(folder / name)
    crash("staging_made")
    return Stage(step, nonce, max(newest, 0) + 1, folder / name, final), checkpoints


@dataclass(frozen=True)
class Contents:
    """``entries`` with ``metadata`` are the rank's shard, ``places`` its part of the index; ``side``: bytes
    of further files by their name in the checkpoint.
    """

    entries: list[TensorEntry]
    metadata: dict[str, str]
    places: TensorPlaces
    side: dict[str, bytes]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        shard = file_bytes(self.entries, self.metadata) if self.entries else 0
        return shard + sum(map(len, self.side.values()))


def contents_of(
    rank: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
) -> Contents:
    """Return a rank's contents; tensors are not copied, state and files are. Collective, as exports are.

    Raises CheckpointError for a state that is not JSON and for a name that is not plain.
    """
    mine = list(shards)  # references only: its collectives end before any error of the disk
    entries, metadata = entries_of(mine)
    side: dict[str, bytes] = {}
    if rank == 0:
        side = {f"{HF_FOLDER}/{name}": content for name, content in files.items()}
        # Alike on all ranks, so rank 0's is saved once.
        side[STATE] = dump_object(state, STATE)
    for name in side:
        if not is_safe_name(name):
            raise CheckpointError(codes.CHECKPOINT_FILE_NAME(found=name))
    return Contents(entries, metadata, places_of(mine, entries), side)


TensorPlaces = dict[str, tuple[str, int, list[int], list[int], list[int]]]


class PendingFileEntry(TypedDict):
    """A ``FileEntry`` on its way to rank 0."""

    bytes: int
    sha256: str
    data: int
    blocks: list[str]


class RankFiles(TypedDict):
    """One rank's files, and the tensors of its shard by encoded name. A tensor has its dtype,
    its first byte after the header, its whole shape, and the offsets and shape of the block.
    """

    files: dict[str, PendingFileEntry]
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
            place = {"global_shape": tuple(shard.global_shape), "offsets": tuple(shard.offsets)}
            metadata[name] = json.dumps(place, separators=(",", ":"))
    return entries, metadata


def places_of(shards: list[Shard], entries: list[TensorEntry]) -> TensorPlaces:
    """Return the places of this rank's tensors in its file, in the form of ``RankFiles``."""
    starts = starts_of(entries)
    return {
        e.name: (*starts[e.name], list(shard.global_shape), list(shard.offsets), list(e.shape))
        for shard, e in zip(shards, entries, strict=True)
    }


def index_of(written: list[RankFiles], shards: Sequence[str]) -> dict[str, TensorRows]:
    """Return the index of all shards. Raises ValueError."""
    numbers = {name: number for number, name in enumerate(shards)}
    tables = []
    for of_rank in written:
        # A rank writes at most one shard; without tensors the number is never used.
        file = next((numbers[name] for name in of_rank["files"] if name in numbers), 0)
        tables.append(
            {
                name: (dtype, tuple(shape), BlockRow(file, start, tuple(offsets), tuple(sizes)))
                for name, (dtype, start, shape, offsets, sizes) in of_rank["tensors"].items()
            }
        )
    return build_index(tables)


def manifest_of(
    step: int, sequence: int, world_size: int, created: float, written: list[RankFiles], grain: BlockSizes
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
