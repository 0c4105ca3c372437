"""Upload and download a checkpoint's files, with comparison both ways."""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

from filelock import FileLock

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged, incomplete, skipped
from paceline.checkpoint.format.block_hashes import BlockSizes, hash_of_bytes
from paceline.checkpoint.format.durable_files import (
    make_folder,
    named_errors,
    need_space,
    never,
    replace_text,
    sync_folder,
    write_fresh,
)
from paceline.checkpoint.format.manifest import MANIFEST, FileEntry, Manifest, folders_of
from paceline.checkpoint.format.verify_files import (
    LATEST,
    CheckpointFolder,
    aside_name,
    check_name,
    leftovers,
    open_part,
    scan,
    shard_name,
    verify,
    wrong_block,
)
from paceline.checkpoint.load.find_checkpoint import BEFORE_BYTES, only_missing_files, problem_of
from paceline.checkpoint.object_store.commits import StoredCheckpoint, read_head
from paceline.checkpoint.object_store.interface import ObjectStore, ReadBack, StoreUnavailable, again
from paceline.checkpoint.save.retention import discard
from paceline.checkpoint.save.staging import Stage
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.units import human_bytes, human_seconds
from paceline.rules import codes as rules_codes

PIECE = 16 * 1024 * 1024
_SAMPLE = 1024 * 1024
_AT_ONCE = 4  # blocks under way, each in memory
# A second read tells damage in the store from damage on the way.
_LOOKS = 2  # reads of a block before it counts as damaged in the store


def files_of_rank(checkpoint: Path, files: Sequence[str], rank: int, world_size: int) -> list[str]:
    """Return the files that a rank uploads: its shard, and on rank 0 all other files."""
    if rank:
        mine = shard_name(rank, world_size)
        return [mine] if (checkpoint / mine).is_file() else []
    others = {shard_name(other, world_size) for other in range(1, world_size)}
    return [name for name in (*files, MANIFEST) if name not in others]


def upload(store: ObjectStore, checkpoint: Path, names: Sequence[str], folder: str) -> dict[str, int]:
    """Upload files; return name → bytes once each stored file equals the local one.

    Raises CheckpointError, also ``objects.damaged`` if the store holds something else.
    """

    def put(name: str) -> None:
        store.put_file(f"{folder}/{name}", checkpoint / name)
        _compare(store, checkpoint, name, f"{folder}/{name}")

    for name in names:
        again(partial(put, name))
    return {name: (checkpoint / name).stat().st_size for name in names}


def _compare(store: ObjectStore, checkpoint: Path, name: str, stored: str) -> None:
    """Compare sizes, and those bytes whose hash the store may not have checked."""
    facts, size = store.facts(stored), (checkpoint / name).stat().st_size
    if facts is None or facts.num_bytes != size:
        raise _other(stored, f"{facts.num_bytes if facts else 'no'} of {size} bytes")
    with open_part(checkpoint, name) as file:
        for start, end in read_back_ranges(store.reads_back, size):
            file.seek(start)
            if store.get_range(stored, start, end) != file.read(end - start):
                raise _other(stored, f"bytes {start} to {end} differ")


def read_back_ranges(much: ReadBack, size: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) of a file to read back. Samples are all of a small file, else its first
    and last range and a random one between.
    """
    if much is ReadBack.NOTHING:
        return []
    if much is ReadBack.ALL or size <= 3 * _SAMPLE:
        return [(start, min(size, start + PIECE)) for start in range(0, size, PIECE)]
    last = size - _SAMPLE
    # A random middle: a store that damages files always at the same place is noticed in time.
    starts = (0, _SAMPLE + secrets.randbelow(last - 2 * _SAMPLE + 1), last)
    return [(start, start + _SAMPLE) for start in starts]


def _other(stored: str, difference: str) -> StoreUnavailable:
    return StoreUnavailable(codes.OBJECTS_DAMAGED("an upload arrived damaged", stored, difference))


def download(store: ObjectStore, folder: str, manifest: Manifest, content: bytes, into: Path) -> None:
    """Download the files of a checkpoint into the existing folder ``into``; ``content``: the manifest's
    bytes.

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
        """Yield the file's bytes in order, reading ahead; each block only with a correct hash.

        Raises CheckpointError.
        """
        size = PIECE if self.grain is None else self.grain.block_bytes
        numbers = iter(range(-(-self.entry.bytes // size)))
        # A bounded window: memory holds a few blocks, however large the file is.
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


_LOCK = ".fetch.lock"


@dataclass(frozen=True)
class DownloadedCheckpoint:
    """A downloaded checkpoint, with notes."""

    path: Path
    notes: tuple[Diagnostic, ...]


def download_newest(
    store: ObjectStore, url: ObjectUrl, folder: Path, *, several: bool = False
) -> DownloadedCheckpoint | None:
    """Download the newest checkpoint of ``url`` into a run's ``checkpoints`` folder, unless a sound one at
    least as new is there.

    One of the processes that share the disk does it. Damaged checkpoints on either side are skipped with a
    note. With ``several`` disks, files missing here may exist on other nodes; the ranks check all disks
    later. Files that are here count if they are sound. Raises CheckpointError, on one disk also if none is
    sound.
    """
    make_folder(folder)
    with named_errors(folder), FileLock(str(folder / _LOCK)):
        _, head = read_head(store, str(url))
        stored = head.checkpoints if head is not None else ()
        if not stored:
            return None
        on_disk = find_local(folder, elsewhere=several)
        here = on_disk.sequence
        # By sequence, not by step: a resumed run may save an old step anew.
        if here >= stored[-1].sequence:
            return None
        notes: list[Diagnostic] = []
        for checkpoint in reversed(stored):
            # What is left in the store is older than the disk's own.
            if checkpoint.sequence <= here:
                break
            try:
                brought = _download(store, url, checkpoint, folder)
            except CheckpointError as problem:
                if problem.diagnostics[0].code not in _DAMAGE:
                    raise
                notes.append(_passed_over(checkpoint, url, problem))
                continue
            replace_text(folder / LATEST, brought.path.name + "\n")
            notes += on_disk.replaced(checkpoint.name, str(url))
            return DownloadedCheckpoint(brought.path, (*notes, *brought.notes))
    if here >= 0 or several:
        return DownloadedCheckpoint(folder, tuple(notes)) if notes else None
    raise CheckpointError(
        rules_codes.RESUME_ONLY_INCOMPLETE(
            "the URL names checkpoints, but none of them is sound", str(url), notes[0].found
        )
    )


def download_named(store: ObjectStore, url: ObjectUrl, folder: Path) -> DownloadedCheckpoint:
    """Download the checkpoint in ``url`` (without a step: the newest) into ``folder``, unless it is there.
    Raises CheckpointError.
    """
    make_folder(folder)
    with named_errors(folder), FileLock(str(folder / _LOCK)):
        checkpoint = stored_checkpoint(store, url)
        there = [local for local in scan(folder) if local.name == checkpoint.name and is_sound(local)]
        if there and there[0].manifest is not None and there[0].manifest.sequence == checkpoint.sequence:
            return DownloadedCheckpoint(there[0].path, ())
        return _download(store, url, checkpoint, folder)


def stored_checkpoint(store: ObjectStore, url: ObjectUrl) -> StoredCheckpoint:
    """Return the checkpoint that ``url`` names; without a step the newest. Raises CheckpointError."""
    _, head = read_head(store, str(url))
    stored = head.checkpoints if head is not None else ()
    matches = [checkpoint for checkpoint in stored if url.step in (None, checkpoint.name)]
    if not matches:
        names = ", ".join(checkpoint.name for checkpoint in stored[-3:])
        raise CheckpointError(
            codes.RESUME_NOT_A_CHECKPOINT(
                "there is no such checkpoint at this URL",
                str(url),
                (url.step or "no checkpoint") + (f"; available: {names}" if names else ""),
                "name one that is there, or the URL without a step for the newest",
            )
        )
    return matches[-1]


def _download(
    store: ObjectStore, url: ObjectUrl, checkpoint: StoredCheckpoint, folder: Path
) -> DownloadedCheckpoint:
    began = time.perf_counter()
    manifest, content = manifest_of(store, checkpoint)
    check_name(folder / checkpoint.name, manifest)
    for left in leftovers(folder):
        discard(left)
    need_space(folder, manifest.total_bytes)
    nonce = os.urandom(6).hex()
    staging = folder / aside_name("staging", checkpoint.name, nonce)
    stage = Stage(checkpoint.step, nonce, checkpoint.sequence, staging, folder / checkpoint.name)
    os.mkdir(stage.folder)
    try:
        download(store, checkpoint.folder, manifest, content, stage.folder)
        stage.rename(never)
    except Exception:
        discard(stage.folder)
        raise
    took = f"{human_bytes(manifest.total_bytes)} in {human_seconds(time.perf_counter() - began)}"
    note = codes.OBJECTS_FETCHED(
        str(stage.final), f"{took}, every block by its hash", name=checkpoint.name, url=url
    )
    return DownloadedCheckpoint(stage.final, (note,))


def manifest_of(store: ObjectStore, checkpoint: StoredCheckpoint) -> tuple[Manifest, bytes]:
    """Return the manifest of a committed checkpoint, and its bytes. Raises CheckpointError."""
    manifest, content = read_stored_manifest(store, checkpoint.folder)
    if (manifest.step, manifest.sequence) != (checkpoint.step, checkpoint.sequence):
        raise incomplete(Path(checkpoint.folder), f"its manifest is of step {manifest.step}")
    return manifest, content


_DAMAGE = frozenset(
    {
        codes.OBJECTS_DAMAGED.name,
        codes.CHECKPOINT_DAMAGED.name,
        codes.CHECKPOINT_INCOMPLETE.name,
        codes.CHECKPOINT_MANIFEST.name,
        codes.CHECKPOINT_JSON.name,
    }
)


def _passed_over(checkpoint: StoredCheckpoint, url: ObjectUrl, problem: CheckpointError) -> Diagnostic:
    first = problem.diagnostics[0]
    return skipped(
        f"{checkpoint.name} of the URL",
        first.what,
        f"{url}/{checkpoint.folder}",
        "an earlier one is taken",
        first,
    )


@dataclass(frozen=True)
class LocalCheckpoints:
    """``sequence``: of the newest sound checkpoint, -1 if there is none; ``damaged``: newer damaged ones,
    newest first.
    """

    sequence: int
    damaged: Sequence[tuple[CheckpointFolder, CheckpointError]] = ()

    def replaced(self, name: str, where: str) -> list[Diagnostic]:
        """Return the warning that a URL's checkpoint replaces a damaged one of this disk."""
        return [
            skipped(
                f"{name} of this disk",
                problem.diagnostics[0].what,
                str(checkpoint.path),
                f"the one of {where} is taken in its place",
                problem.diagnostics[0],
            )
            for checkpoint, problem in self.damaged
            if checkpoint.name == name
        ]


def find_local(folder: Path, *, elsewhere: bool) -> LocalCheckpoints:
    """Look at this disk's checkpoints, the newest first, until one is sound. Sound means all files with their
    sizes and, up to ``BEFORE_BYTES``, every hash. The ranks hash larger ones as they read them.

    ``elsewhere``: files that are not here may be on other nodes' disks. Raises the error of one that a newer
    Paceline wrote.
    """
    damaged: list[tuple[CheckpointFolder, CheckpointError]] = []
    for checkpoint in reversed(scan(folder)):
        problem = _problem(checkpoint, elsewhere)
        if problem is None:
            return LocalCheckpoints(checkpoint.age_key[0], damaged)
        if problem.diagnostics[0].code == codes.CHECKPOINT_NEWER.name:
            raise problem
        damaged.append((checkpoint, problem))
    return LocalCheckpoints(-1, damaged)


def is_sound(checkpoint: CheckpointFolder) -> bool:
    """Whether a checkpoint passes the checks before a start."""
    return _problem(checkpoint, elsewhere=False) is None


def _problem(checkpoint: CheckpointFolder, elsewhere: bool) -> CheckpointError | None:
    if checkpoint.problem is None:
        return problem_of(checkpoint, BEFORE_BYTES)
    manifest = checkpoint.manifest
    if manifest is None or not elsewhere or not only_missing_files(checkpoint.problem.diagnostics):
        return checkpoint.problem
    files = {name: entry for name, entry in manifest.files.items() if (checkpoint.path / name).is_file()}
    if not files:
        return checkpoint.problem
    try:
        verify(checkpoint.path, replace(manifest, files=files), tensors=manifest.total_bytes <= BEFORE_BYTES)
    except CheckpointError as problem:
        return problem
    return None
