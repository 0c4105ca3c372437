"""Durable writes: new files only, hashed while written, on disk on return. No torch."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.block_hashes import BlockHash, BlockSizes
from paceline.checkpoint.format.manifest import FileEntry
from paceline.core.errors import CheckpointError
from paceline.core.files import refusal_of
from paceline.core.units import human_bytes

CrashPoint = Callable[[str], None]
_BLOCK = 16 * 1024 * 1024
# Two hide the hash behind the write; more would only hold memory.
_PENDING = 2  # pieces that wait to be hashed
_ROOM = (
    "free disk space, lower training.save_total_limit if it is above 1, or set training.output_dir to another"
    " disk; a run that this ended continues with --resume latest"
)
_CODES = {
    errno.ENOSPC: (
        codes.CHECKPOINT_DISK_FULL,
        "the disk is full",
        _ROOM,
    ),
    errno.EDQUOT: (
        codes.CHECKPOINT_DISK_FULL,
        "the disk quota is used up",
        "free disk space, or set training.output_dir to another disk",
    ),
    errno.EROFS: (
        codes.CHECKPOINT_READ_ONLY,
        "the file system is read-only",
        "remount it read-write, or set training.output_dir to another file system",
    ),
    errno.EACCES: (
        codes.CHECKPOINT_PERMISSION,
        "no write permission here",
        "give this user write permission, or set training.output_dir to another folder",
    ),
    errno.EPERM: (
        codes.CHECKPOINT_PERMISSION,
        "no write permission here",
        "give this user write permission, or set training.output_dir to another folder",
    ),
}


def never(point: str) -> None:
    """The crash hook outside tests: do nothing."""


@contextmanager
def named_errors(where: Path, what: str = "the checkpoint cannot be written") -> Iterator[None]:
    """Turn an OSError raised inside into a CheckpointError that names the reason."""
    try:
        yield
    except OSError as exc:
        raise os_error(exc, where, what) from exc


def os_error(exc: OSError, where: Path, failed: str = "the checkpoint cannot be written") -> CheckpointError:
    """Return the CheckpointError for an error of the operating system."""
    code, reason, remedy = _CODES.get(
        exc.errno or 0, (codes.CHECKPOINT_IO, "", "check the disk and its file system")
    )
    refused = refusal_of(exc, where)
    if refused is not None and refused.kind == "no_inodes":
        reason, remedy = refused.reason, refused.hint
    evidence = f"{os.strerror(exc.errno)}: {exc.filename or where}" if exc.errno else str(exc)
    text = f"{failed}: {reason}" if reason else failed
    return CheckpointError(code(f"{text}; earlier checkpoints are unchanged", str(where), evidence, remedy))


def write_fresh(
    path: Path,
    blocks: Iterable[bytes | memoryview],
    crash: CrashPoint = never,
    grain: BlockSizes | None = None,
) -> FileEntry:
    """Create ``path`` (it must not exist, not even as a link), write the blocks, fsync, close.

    The entry has one sha256, or with ``grain`` the hashes of the file's blocks. Raises OSError.
    """
    digest, of_blocks, size = hashlib.sha256(), BlockHash(grain or BlockSizes()), 0
    # O_EXCL and O_NOFOLLOW: a name that is there already, or a link, is somebody else's file.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        crash("file_created")
        with _HashThread((digest if grain is None else of_blocks).update) as hashed:
            for block in blocks:
                # ``cast`` refuses views without elements.
                view = memoryview(block).cast("B") if memoryview(block).nbytes else memoryview(b"")
                for start in range(0, len(view), _BLOCK):
                    piece = view[start : start + _BLOCK]
                    hashed.enqueue(piece)
                    write_all(fd, piece)
                    _begin_writing_back(fd, size, len(piece))
                    size += len(piece)
                if len(view) >= _BLOCK:
                    hashed.wait()  # a large tensor is let go before the next one is asked for
                # These names would keep the tensor's memory alive while the generator makes the next one.
                block = view = piece = memoryview(b"")
        # Errors of delayed writes come at fsync, so the file counts only after it.
        crash("file_written")
        os.fsync(fd)
    finally:
        os.close(fd)
    crash("file_synced")
    return (
        FileEntry(size, digest.hexdigest()) if grain is None else FileEntry(size, blocks=of_blocks.hashes())
    )


def need_space(folder: Path, num_bytes: int) -> None:
    """Raise CheckpointError ``checkpoint.disk_full`` if ``folder``'s disk has under ``num_bytes`` free."""
    info = os.statvfs(folder)
    # f_bavail, not f_bfree: blocks reserved for root are none of ours.
    free = info.f_bavail * info.f_frsize
    if free < num_bytes:
        raise CheckpointError(
            codes.CHECKPOINT_DISK_FULL(
                "the disk has no room for this checkpoint; earlier checkpoints are unchanged",
                str(folder),
                f"{human_bytes(free)} free, {human_bytes(num_bytes)} needed",
                _ROOM,
            )
        )


class _HashThread:
    """Calls ``update`` with pieces in order, those of large files in a thread while they are written: hashing
    releases the interpreter's lock, as writing does.
    """

    def __init__(self, update: Callable[[memoryview], None]) -> None:
        self._update = update
        self._thread: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> _HashThread:
        return self

    def enqueue(self, piece: memoryview) -> None:
        """Take the next piece, which must not change until the end; waits if too many are queued."""
        if self._thread is None and len(piece) < _BLOCK:
            self._update(piece)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "paceline-hash")
        self._pending.append(self._thread.submit(self._update, piece))
        if len(self._pending) > _PENDING:
            self._pending.popleft().result()

    def wait(self) -> None:
        """Wait until all enqueued pieces are hashed."""
        while self._pending:
            self._pending.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()


def _begin_writing_back(fd: int, start: int, count: int) -> None:
    """Start writing large pieces to disk while the next ones are hashed, rather than at the fsync."""
    if count == _BLOCK and hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # an advice: where it is not taken, the fsync writes all
            # Linux begins to write dirty pages when it is told that they are not needed.
            os.posix_fadvise(fd, start, count, os.POSIX_FADV_DONTNEED)


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that the names in it are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; on return all their names are durable. Raises OSError."""
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    for above in path.parents:
        try:
            sync_folder(above)
        except PermissionError:  # not one that this user has made
            return
        # Above the mount point are folders of another file system, which were there before.
        if os.path.ismount(above):
            return


def replace_text(path: Path, text: str, crash: CrashPoint = never) -> None:
    """Replace a small text file atomically and durably."""
    # Same folder: a rename is atomic only within one file system.
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        write_fresh(fresh, [text.encode()])
        crash("hint_written")
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    crash("hint_replaced")
    sync_folder(path.parent)


def write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]
