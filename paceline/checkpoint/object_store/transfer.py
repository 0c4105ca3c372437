"""Files of a checkpoint to an object store and back, compared on both ways."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.block_hashes import BlockSizes, hash_of_bytes
from paceline.checkpoint.format.durable_files import sync_folder, write_fresh
from paceline.checkpoint.format.folder_layout import shard_name
from paceline.checkpoint.format.manifest import MANIFEST, FileEntry, Manifest, folders_of
from paceline.checkpoint.format.verify_files import open_part, wrong_block
from paceline.checkpoint.object_store.interface import ObjectStore, ReadBack, StoreUnavailable, again
from paceline.core.errors import CheckpointError

PIECE = 16 * 1024 * 1024
_SAMPLE = 1024 * 1024
_AT_ONCE = 4  # blocks under way, each in memory
# A second read tells damage in the store from damage on the way.
_LOOKS = 2  # reads of a block before it counts as damaged in the store


def files_of_rank(checkpoint: Path, files: Sequence[str], rank: int, world_size: int) -> list[str]:
    """Return the files of a checkpoint that a rank uploads: its shard, and rank 0 all that is no other's."""
    if rank:
        mine = shard_name(rank, world_size)
        return [mine] if (checkpoint / mine).is_file() else []
    others = {shard_name(other, world_size) for other in range(1, world_size)}
    return [name for name in (*files, MANIFEST) if name not in others]


def upload(store: ObjectStore, checkpoint: Path, names: Sequence[str], folder: str) -> dict[str, int]:
    """Upload files; return name → bytes, once each is there as it is here.

    Raises CheckpointError, also ``objects.damaged`` if the store holds something else.
    """

    def put(name: str) -> None:
        store.put_file(f"{folder}/{name}", checkpoint / name)
        _compare(store, checkpoint, name, f"{folder}/{name}")

    for name in names:
        again(partial(put, name))
    return {name: (checkpoint / name).stat().st_size for name in names}


def _compare(store: ObjectStore, checkpoint: Path, name: str, stored: str) -> None:
    """Compare sizes, and the bytes too as far as the store has not surely compared a hash of them itself."""
    facts, size = store.facts(stored), (checkpoint / name).stat().st_size
    if facts is None or facts.num_bytes != size:
        raise _other(stored, f"{facts.num_bytes if facts else 'no'} of {size} bytes")
    with open_part(checkpoint, name) as file:
        for start, end in read_back_ranges(store.reads_back, size):
            file.seek(start)
            if store.get_range(stored, start, end) != file.read(end - start):
                raise _other(stored, f"bytes {start} to {end} differ")


def read_back_ranges(much: ReadBack, size: int) -> list[tuple[int, int]]:
    """Return the ranges of a file to read back, [start, end): for samples all of a small file; of a larger
    one the first, the last and, anywhere between, another.
    """
    if much is ReadBack.NOTHING:
        return []
    if much is ReadBack.ALL or size <= 3 * _SAMPLE:
        return [(start, min(size, start + PIECE)) for start in range(0, size, PIECE)]
    last = size - _SAMPLE
    starts = (0, _SAMPLE + secrets.randbelow(last - 2 * _SAMPLE + 1), last)
    return [(start, start + _SAMPLE) for start in starts]


def _other(stored: str, difference: str) -> StoreUnavailable:
    return StoreUnavailable(codes.OBJECTS_DAMAGED("an upload arrived damaged", stored, difference))


def download(store: ObjectStore, folder: str, manifest: Manifest, content: bytes, into: Path) -> None:
    """Bring the files of a checkpoint into the folder ``into``, which exists; ``content`` is the manifest's.

    Every hash of the manifest is compared while the blocks arrive. On return all of it is durable. Raises
    CheckpointError and OSError.
    """
    folders = folders_of(manifest.files)
    for inner in folders:
        os.mkdir(into / inner)
    with ThreadPoolExecutor(_AT_ONCE, "paceline-fetch") as pool:
        for name in manifest.files:
            stored = CheckpointObject(store, folder, name, manifest)
            stored.check(write_fresh(into / name, stored.pieces(pool), grain=stored.grain).sha256)
    write_fresh(into / MANIFEST, [content])
    for inner in reversed(folders):
        sync_folder(into / inner)
    sync_folder(into)


def verify_stored(store: ObjectStore, folder: str, manifest: Manifest) -> None:
    """Read all files of a stored checkpoint, a few blocks in memory at a time, and compare every hash.

    Raises CheckpointError that names the first that differs.
    """
    with ThreadPoolExecutor(_AT_ONCE, "paceline-verify") as pool:
        for name in manifest.files:
            stored, digest = CheckpointObject(store, folder, name, manifest), sha256()
            for piece in stored.pieces(pool):
                if stored.grain is None:
                    digest.update(piece)
            stored.check(digest.hexdigest())


@dataclass(frozen=True)
class CheckpointObject:
    """A file of a stored checkpoint, as the manifest has it; ``grain``: None where it has one sha256."""

    store: ObjectStore
    folder: str
    name: str
    manifest: Manifest

    @property
    def entry(self) -> FileEntry:
        return self.manifest.files[self.name]

    @property
    def grain(self) -> BlockSizes | None:
        return self.manifest.grain if self.entry.blocks else None

    def pieces(self, pool: Executor) -> Iterator[bytes]:
        """Yield the file's bytes in order, with a few reads under way; a block with its right hash.

        Raises CheckpointError.
        """
        size = PIECE if self.grain is None else self.grain.block_bytes
        numbers = iter(range(-(-self.entry.bytes // size)))
        reads = deque(pool.submit(self._piece, number, size) for number in islice(numbers, _AT_ONCE))
        while reads:
            piece = reads.popleft().result()
            reads.extend(pool.submit(self._piece, number, size) for number in islice(numbers, 1))
            yield piece

    def check(self, digest: str) -> None:
        """Raise CheckpointError if a file that has one sha256 has another than ``digest``."""
        if self.grain is None and digest != self.entry.sha256:
            raise damaged(
                Path(self.folder), self.name, f"sha256 {digest[:12]}… instead of {self.entry.sha256[:12]}…"
            )

    def _piece(self, number: int, size: int) -> bytes:
        start, end = number * size, min(self.entry.bytes, (number + 1) * size)
        for _ in range(_LOOKS):  # a proxy on the way may have damaged the first
            piece = again(lambda: self.store.get_range(f"{self.folder}/{self.name}", start, end))
            if self.grain is None:
                return piece
            digest = hash_of_bytes([memoryview(piece)], self.grain)
            if digest == self.entry.blocks[number]:
                return piece
        difference = wrong_block(self.entry, number, self.manifest.grain, digest)
        raise damaged(Path(self.folder), self.name, difference)


def read_stored_manifest(store: ObjectStore, folder: str) -> tuple[Manifest, bytes]:
    """Return the manifest of a stored checkpoint, and its bytes. Raises CheckpointError."""
    stored = f"{folder}/{MANIFEST}"
    content = again(lambda: store.get(stored))
    if content is None:
        raise CheckpointError(
            codes.OBJECTS_DAMAGED(
                "the checkpoint's manifest is not in the store", stored, "removed, or never complete"
            )
        )
    return Manifest.from_bytes(content, stored), content
