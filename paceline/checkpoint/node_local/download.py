"""Bring a checkpoint's file from another node: streamed, compared with the manifest, then named. No torch."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.block_hashes import Grain
from paceline.checkpoint.format.durable_files import named_errors, need_space, sync_folder, write_fresh
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES, FileEntry, Manifest
from paceline.checkpoint.format.verify_files import wrong_block
from paceline.checkpoint.node_local.file_server import Holder, RefusedError, asked_for
from paceline.checkpoint.save.retention import manifest_digest
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError

_STAGED = ".fetched-"
_CANNOT = "a file of the checkpoint cannot be brought from another node"


def fetch_manifest(folder: Path, digest: str, holders: Sequence[Holder], key: bytes) -> None:
    """Bring the manifest into ``folder``. Raises CheckpointError."""
    reasons: list[tuple[Holder, str, bool]] = []
    for holder in holders:
        staged = _staged(folder, MANIFEST)
        try:
            with asked_for(holder.place, key, digest, MANIFEST) as (size, pieces):
                if size > MAX_MANIFEST_BYTES:
                    raise RefusedError(f"its manifest has {size} bytes")
                with named_errors(folder, _CANNOT):
                    write_fresh(staged, _received(pieces))
            os.rename(staged, folder / MANIFEST)
            if manifest_digest(folder) == digest:
                return
            (folder / MANIFEST).unlink()
            reasons.append((holder, "it is another manifest", True))
        except (RefusedError, OSError) as exc:
            staged.unlink(missing_ok=True)
            reasons.append((holder, _words(exc), False))
    raise _not_fetched(folder, MANIFEST, reasons)


def fetch_file(
    checkpoint: Path, manifest: Manifest, name: str, digest: str, holders: Sequence[Holder], key: bytes
) -> list[Diagnostic]:
    """Bring one file from the first of ``holders`` whose bytes have the manifest's hashes; return warnings of
    those that gave others. One rank of a node brings it, the others wait.

    Raises CheckpointError: ``checkpoint.damaged`` where each holder's bytes are wrong,
    ``checkpoint.not_fetched`` where one did not answer, ``checkpoint.disk_full``.
    """
    entry, final = manifest.files[name], checkpoint / name
    reasons: list[tuple[Holder, str, bool]] = []
    with _alone(checkpoint, name):
        if final.exists():
            return []
        need_space(checkpoint, entry.bytes)
        final.parent.mkdir(parents=True, exist_ok=True)
        for holder in holders:
            staged = _staged(checkpoint, name)
            try:
                wrong = _bring(staged, entry, manifest.grain, name, digest, holder, key)
            except (RefusedError, OSError) as exc:
                staged.unlink(missing_ok=True)
                reasons.append((holder, _words(exc), False))
                continue
            except BaseException:
                staged.unlink(missing_ok=True)
                raise
            if wrong:
                staged.unlink()
                reasons.append((holder, wrong, True))
                continue
            with named_errors(checkpoint, _CANNOT):
                os.rename(staged, final)
                sync_folder(final.parent)
            return [_other_bytes(checkpoint, name, *reason[:2]) for reason in reasons if reason[2]]
    raise _not_fetched(checkpoint, name, reasons)


def remove_unfinished(checkpoint: Path) -> None:
    """Remove what interrupted fetches have left in a checkpoint's folder."""
    for left in checkpoint.glob(f"{_STAGED}*"):
        left.unlink(missing_ok=True)


def _bring(
    staged: Path, entry: FileEntry, grain: Grain, name: str, digest: str, holder: Holder, key: bytes
) -> str:
    """Write a holder's bytes; return what differs from the manifest, nothing if they are right."""
    with asked_for(holder.place, key, digest, name) as (size, pieces):
        if size != entry.bytes:
            raise RefusedError(f"its file has {size} bytes instead of {entry.bytes}")
        with named_errors(staged.parent, _CANNOT):
            found = write_fresh(staged, _received(pieces), grain=grain if entry.blocks else None)
    if not entry.blocks:
        return "" if found.sha256 == entry.sha256 else f"sha256 {found.sha256[:12]}…"
    for block, (theirs, ours) in enumerate(zip(found.blocks, entry.blocks, strict=True)):
        if theirs != ours:
            return wrong_block(entry, block, grain, theirs)
    return ""


def _received(pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """Yield the pieces; an error of the connection is none of this disk."""
    try:
        yield from pieces
    except OSError as exc:
        raise RefusedError(_words(exc)) from exc


@contextmanager
def _alone(checkpoint: Path, name: str) -> Iterator[None]:
    """Let one process of this machine at a time bring the file."""
    path = checkpoint / f"{_STAGED}{_flat(name)}.lock"
    with named_errors(checkpoint, _CANNOT):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _staged(checkpoint: Path, name: str) -> Path:
    return checkpoint / f"{_STAGED}{_flat(name)}-{os.urandom(4).hex()}"


def _flat(name: str) -> str:
    return name.replace("/", "-")


def _words(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200]


def _not_fetched(checkpoint: Path, name: str, reasons: Sequence[tuple[Holder, str, bool]]) -> CheckpointError:
    found = "; ".join(f"{holder}: {why}" for holder, why, _ in reasons)
    if reasons and all(wrong for _, _, wrong in reasons):
        return damaged(checkpoint, name, found)
    return CheckpointError(
        codes.CHECKPOINT_NOT_FETCHED(str(checkpoint), found or "no node has it", name=name)
    )


def _other_bytes(checkpoint: Path, name: str, holder: Holder, wrong: str) -> Diagnostic:
    return codes.CHECKPOINT_HOLDER_DAMAGED(str(checkpoint), wrong, holder=holder, name=name)
