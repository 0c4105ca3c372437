"""File digests, and small cached results with a checksum: a damaged one counts as missing."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.files import open_file
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes

# A digest over blocks: threads share the work on one large file
HASHED_BLOCK = 1 << 26
_BLOCK_BYTES = 1 << 22
_SETTLED_SECONDS = 2.0  # a file modified this recently may change again within its timestamp's resolution
LIBRARIES = ("transformers", "tokenizers", "jinja2", "sentencepiece", "tiktoken")


def versions() -> dict[str, str]:
    """Return the versions of the tokenization libraries; ``none`` for one that is not installed."""
    return {name: library_version(name) for name in LIBRARIES}


@cache
def library_version(package: str) -> str:
    """Return the version of an installed package; ``none`` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def digest_files(files: Iterable[Path], cache_dir: Path) -> dict[Path, str]:
    """Return the sha256 of each file, cached by (path, size, mtime, ctime, inode)."""
    memo = cache_dir / "digests"
    return {file: _digest(file, memo) for file in files}


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file, lower-case hex. Raises OSError."""
    digest = hashlib.sha256()
    with open_file(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def block_digest(file: Path) -> str:
    """Return the sha256 over the sha256 of each 64 MiB block, lower-case hex, computed by threads.

    Raises OSError.
    """
    size = file.stat().st_size
    starts = range(0, size, HASHED_BLOCK)
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1, len(starts)))) as pool:
        blocks = list(pool.map(lambda start: _hash_block(file, start), starts))
    # hashlib releases the GIL, so threads do read and hash at the same time.
    return hashlib.sha256(b"".join(blocks) + size.to_bytes(8, "little")).hexdigest()


def _hash_block(file: Path, start: int) -> bytes:
    digest, left = hashlib.sha256(), HASHED_BLOCK
    # Its own handle: threads must not share a position.
    with file.open("rb", buffering=0) as stream:
        stream.seek(start)
        while left and (block := stream.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.digest()


def _digest(file: Path, memo: Path) -> str:
    try:
        status = file.stat()
        stamp: list[Json] = [
            str(file.resolve()),
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        ]
        note = memo / hashlib.sha256(str(stamp[0]).encode()).hexdigest()[:32]
        stored = recall(note) or {}
        if stored.get("stamp") == stamp:
            return str(stored["sha256"])
        begun = time.time()
        digest = sha256_of(file)
    except OSError as exc:
        raise DataError(
            codes.DATA_UNREADABLE("the file cannot be read", str(file), exc.strerror or str(exc))
        ) from exc
    if begun - status.st_ctime > _SETTLED_SECONDS:
        remember(note, {"stamp": stamp, "sha256": digest})
    return digest


def recall(note: Path) -> JsonObject | None:
    """Return what ``remember`` wrote; None if it is missing or damaged."""
    try:
        stored = json.loads(note.read_text("utf-8"))
        value, check = stored["value"], stored["check"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) and check == digest_of(value) else None


def remember(note: Path, value: Mapping[str, Json]) -> None:
    """Write a cached result atomically; ignore errors, since a missing cache only costs time."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        # By process: two that write the same note must not share a file.
        staged = note.with_name(f"{note.name}.{os.getpid()}")
        staged.write_text(json.dumps({"value": value, "check": digest_of(value)}), "utf-8")
        # Readers see the old note or the new one, never a half
        staged.replace(note)
    except OSError:
        return


def digest_of(value: Json) -> str:
    """Return the sha256 of canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
