"""Files of a checkpoint to an object store and back, compared on both ways."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from hashlib import sha256
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.block_hashes import BlockHash
from paceline.checkpoint.format.durable_files import sync_folder, write_fresh
from paceline.checkpoint.format.folder_layout import shard_name
from paceline.checkpoint.format.manifest import MANIFEST, FileEntry, Manifest, folders_of
from paceline.checkpoint.format.verify_files import open_part, verify_open, wrong_block
from paceline.checkpoint.object_store.interface import ObjectStore, ReadBack, StoreUnavailable, again
from paceline.core.errors import CheckpointError

PIECE = 16 * 1024 * 1024
_SAMPLE = 1024 * 1024
_AT_ONCE = 4  # blocks under way, each in memory
_LOOKS = 2  # reads of a block before it counts as damaged in the store


def files_of_rank(checkpoint: Path, files: Sequence[str], rank: int, world_size: int) -> list[str]:
    """Return the files of a checkpoint that a rank uploads: its shard, and rank 0 all that is no other's."""
    if rank:
        mine = shard_name(rank, world_size)
        return [mine] if (checkpoint / mine).is_file() else []
    others = {shard_name(one, world_size) for one in range(1, world_size)}
    return [name for name in (*files, MANIFEST) if name not in others]


def upload(store: ObjectStore, checkpoint: Path, names: Sequence[str], folder: str) -> dict[str, int]:
    """Upload files; return name → bytes, once each is there as it is here.

    Raises CheckpointError, also ``objects.damaged`` if the store holds something else.
    """

    def one(name: str) -> None:
        store.put_file(f"{folder}/{name}", checkpoint / name)
        _compare(store, checkpoint, name, f"{folder}/{name}")

    for name in names:
        again(lambda name=name: one(name))  # type: ignore[misc]
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


def _other(stored: str, found: str) -> StoreUnavailable:
    return StoreUnavailable(codes.OBJECTS_DAMAGED("an upload arrived damaged", stored, found))


def download(store: ObjectStore, folder: str, manifest: Manifest, content: bytes, into: Path) -> None:
    """Bring the files of a checkpoint into the folder ``into``, which exists; ``content`` is the manifest's.

    Every hash of the manifest is compared while the blocks arrive. On return all of it is durable. Raises
    CheckpointError and OSError.
    """
    folders = folders_of(manifest.files)
    for inner in folders:
        os.mkdir(into / inner)
    with ThreadPoolExecutor(_AT_ONCE, "paceline-fetch") as pool:
        for name, entry in manifest.files.items():
            fetch_file(store, f"{folder}/{name}", entry, manifest, into, name, pool)
    write_fresh(into / MANIFEST, [content])
    for inner in reversed(folders):
        sync_folder(into / inner)
    sync_folder(into)


def fetch_file(
    store: ObjectStore,
    stored: str,
    entry: FileEntry,
    manifest: Manifest,
    into: Path,
    name: str,
    pool: ThreadPoolExecutor,
) -> None:
    piece = _piece_bytes(entry, manifest)
    fd = os.open(into / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:

        def bring(block: int) -> None:
            view, at = memoryview(_piece(store, stored, entry, manifest, name, block)), block * piece
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done

        tasks = [pool.submit(bring, block) for block in range(-(-entry.bytes // piece))]
        try:
            for task in tasks:
                task.result()
        finally:  # the descriptor's number may be another file's once it is closed: nothing writes to it then
            for task in tasks:
                task.cancel()
            wait(tasks)
        os.fsync(fd)
    finally:
        os.close(fd)
    if not entry.blocks:
        with open_part(into, name) as file:
            verify_open(file, entry, into, name)


def verify_stored(store: ObjectStore, folder: str, manifest: Manifest) -> None:
    """Read all files of a stored checkpoint, a few blocks in memory at a time, and compare every hash.

    Raises CheckpointError that names the first that differs.
    """
    with ThreadPoolExecutor(_AT_ONCE, "paceline-verify") as pool:
        for name, entry in manifest.files.items():
            read = partial(_piece, store, f"{folder}/{name}", entry, manifest, name)
            count = -(-entry.bytes // _piece_bytes(entry, manifest))
            if entry.blocks:
                for _ in pool.map(lambda block, read=read: read(block) and None, range(count)):
                    pass
                continue
            found = sha256()
            for block in range(count):
                found.update(read(block))
            if found.hexdigest() != entry.sha256:
                raise damaged(Path(folder), name, f"sha256 {found.hexdigest()[:12]}…")


def _piece_bytes(entry: FileEntry, manifest: Manifest) -> int:
    return manifest.grain.block_bytes if entry.blocks else PIECE


def _piece(
    store: ObjectStore, stored: str, entry: FileEntry, manifest: Manifest, name: str, number: int
) -> bytes:
    """Read a piece of a stored file: a block, if it has hashes of blocks, and then with the right one.

    Raises CheckpointError.
    """
    size = _piece_bytes(entry, manifest)
    start, end = number * size, min(entry.bytes, (number + 1) * size)
    for _ in range(_LOOKS):
        found = again(lambda: store.get_range(stored, start, end))
        if not entry.blocks:
            return found
        sound = _hash(found, manifest)
        if sound == entry.blocks[number]:
            return found
    raise damaged(Path(stored).parent, name, wrong_block(entry, number, manifest.grain, sound))


def _hash(block: bytes, manifest: Manifest) -> str:
    found = BlockHash(manifest.grain)
    found.update(memoryview(block))
    return (*found.hashes(), "nothing")[0]


def read_stored_manifest(store: ObjectStore, folder: str) -> tuple[Manifest, bytes]:
    """Return the manifest of a stored checkpoint, and its bytes. Raises CheckpointError."""
    stored = f"{folder}/{MANIFEST}"
    content = again(lambda: store.get(stored))
    if content is None:
        what = "the checkpoint's manifest is not in the store"
        raise CheckpointError(codes.OBJECTS_DAMAGED(what, stored, "removed, or never complete"))
    return Manifest.from_bytes(content, stored), content
