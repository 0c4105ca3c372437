"""Bring a checkpoint's file from another node: streamed, compared with the manifest, then named. No torch."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.durable_files import named_errors, need_space, sync_folder, write_fresh
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from paceline.checkpoint.format.verify_files import wrong_block
from paceline.checkpoint.node_local.file_server import PeerNode, RefusedError, requested_file
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError

_STAGED = ".fetched-"
_CANNOT = "a file of the checkpoint cannot be brought from another node"


@dataclass(frozen=True)
class _Refusal:
    """Why a node's file was not taken; ``damaged``: its bytes are others than those that were saved."""

    holder: PeerNode
    reason: str
    damaged: bool


def fetch_manifest(folder: Path, digest: str, holders: Sequence[PeerNode], key: bytes) -> None:
    """Bring the manifest into ``folder``. Raises CheckpointError."""

    def bring(staged: Path, holder: PeerNode) -> str:
        with requested_file(holder.place, key, digest, MANIFEST) as (size, pieces):
            if size > MAX_MANIFEST_BYTES:
                raise RefusedError(f"its manifest has {size} bytes")
            with named_errors(folder, _CANNOT):
                written = write_fresh(staged, _received(pieces))
        return "" if written.sha256 == digest else "it is another manifest"

    _from_one_of(holders, folder, MANIFEST, bring)


def fetch_file(
    checkpoint: Path, manifest: Manifest, name: str, digest: str, holders: Sequence[PeerNode], key: bytes
) -> list[Diagnostic]:
    """Bring one file from the first of ``holders`` whose bytes have the manifest's hashes; return warnings of
    those that gave others. One rank of a node brings it, the others wait.

    Raises CheckpointError: ``checkpoint.damaged`` where each holder's bytes are wrong,
    ``checkpoint.not_fetched`` where one did not answer, ``checkpoint.disk_full``.
    """
    entry = manifest.files[name]

    def bring(staged: Path, holder: PeerNode) -> str:
        with requested_file(holder.place, key, digest, name) as (size, pieces):
            if size != entry.bytes:
                raise RefusedError(f"its file has {size} bytes instead of {entry.bytes}")
            with named_errors(staged.parent, _CANNOT):
                grain = manifest.grain if entry.blocks else None
                written = write_fresh(staged, _received(pieces), grain=grain)
        if not entry.blocks:
            return "" if written.sha256 == entry.sha256 else f"sha256 {written.sha256[:12]}…"
        pairs = enumerate(zip(written.blocks, entry.blocks, strict=True))
        block, wrong = next(((block, theirs) for block, (theirs, ours) in pairs if theirs != ours), (0, ""))
        return wrong and wrong_block(entry, block, manifest.grain, wrong)

    with _alone(checkpoint, name):
        if (checkpoint / name).exists():
            return []
        need_space(checkpoint, entry.bytes)
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        refusals = _from_one_of(holders, checkpoint, name, bring)
    return [
        codes.CHECKPOINT_HOLDER_DAMAGED(str(checkpoint), refusal.reason, holder=refusal.holder, name=name)
        for refusal in refusals
        if refusal.damaged
    ]


def _from_one_of(
    holders: Sequence[PeerNode], checkpoint: Path, name: str, bring: Callable[[Path, PeerNode], str]
) -> list[_Refusal]:
    """Name the file as the first of ``holders`` gives it right; return why those before it did not.

    ``bring`` writes a holder's bytes and returns what differs, nothing if they are right. Raises
    CheckpointError.
    """
    refusals: list[_Refusal] = []
    for holder in holders:
        staged = checkpoint / f"{_STAGED}{_flat(name)}-{os.urandom(4).hex()}"
        try:
            wrong = bring(staged, holder)
            if not wrong:
                with named_errors(checkpoint, _CANNOT):
                    os.rename(staged, checkpoint / name)
                    sync_folder((checkpoint / name).parent)
                return refusals
            refusals.append(_Refusal(holder, wrong, True))
        except (RefusedError, OSError) as exc:
            refusals.append(_Refusal(holder, _words(exc), False))
        finally:
            staged.unlink(missing_ok=True)
    reasons = "; ".join(f"{refusal.holder}: {refusal.reason}" for refusal in refusals)
    if refusals and all(refusal.damaged for refusal in refusals):
        raise damaged(checkpoint, name, reasons)
    raise CheckpointError(
        codes.CHECKPOINT_NOT_FETCHED(str(checkpoint), reasons or "no node has it", name=name)
    )


def remove_unfinished(checkpoint: Path) -> None:
    """Remove what interrupted fetches have left in a checkpoint's folder."""
    for left in checkpoint.glob(f"{_STAGED}*"):
        left.unlink(missing_ok=True)


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
        # Ranks of one node ask for the same side files at once.
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _flat(name: str) -> str:
    return name.replace("/", "-")


def _words(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200]
