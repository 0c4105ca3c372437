"""Prepared data sets on disk: a folder per fingerprint, published by a rename, verified once per node."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject
from paceline.data.file_digests import block_digest, digest_of, recall, remember
from paceline.data.rows.row_errors import CountsJson
from paceline.launch import codes as launch_codes
from paceline.launch.processes import node, starter

TOKENS, TRAIN, EVAL, META, TOKENIZER = "tokens.arrow", "train.npy", "eval.npy", "meta.json", "tokenizer"
DERIVED = "reference"  # folder of results derived from the data (log-probabilities), with their own digests


class StoredFile(TypedDict):
    """A file of a data set."""

    bytes: int
    sha256: str


class DataSetJson(TypedDict):
    """A data set, with its names in the config that prepared it."""

    path: str
    format: str
    rows: int


class PicturesJson(TypedDict):
    """The pictures of rows: how many are stored, and the digests of those for training, and of all."""

    count: int
    train: str
    all: str


class Meta(TypedDict):
    """``meta.json``."""

    fingerprint: str
    files: dict[str, StoredFile]
    group: int
    counts: CountsJson
    notes: list[JsonObject]
    data_sets: list[DataSetJson]
    vocab_size: int
    pad_token_id: int
    special_tokens: list[int | None]  # end of text, begin of text, padding
    stop_token_ids: list[int]
    longest: int
    max_token_id: int
    pictures: NotRequired[PicturesJson]


class Store:
    """The cache of prepared data sets under ``cache_dir``."""

    def __init__(self, cache_dir: Path) -> None:
        self.root = cache_dir / "prepared"
        self._locks = cache_dir / "locks"
        self._notes = cache_dir / "verified"

    def folder(self, key: str) -> Path:
        """Return the folder of this fingerprint's data set, existing or not."""
        return self.root / key

    def writable(self) -> bool:
        """Whether this process may lock and change (or create) the cache."""
        there = next(p for p in (self._locks, *self._locks.parents) if p.exists())
        return os.access(there, os.W_OK | os.X_OK) or not there.is_dir()  # not a folder: reported later

    def find(self, key: str) -> tuple[Meta | None, str]:
        """Return (``meta.json``, "") of a data set whose files and sizes are right.

        (None, why) if it is missing or damaged.
        """
        folder = self.folder(key)
        if not folder.is_dir():
            return None, ""
        try:
            # The metadata is intact, all files have their sizes, and there are no others.
            meta = json.loads((folder / META).read_text("utf-8"))
            # The digest is of everything else, hence the pop.
            if meta.pop("check") != digest_of(meta):
                return None, "meta.json differs from what was written"
            for name, entry in meta["files"].items():
                # Sizes are quick; ``verified`` reads the bytes.
                if (size := (folder / name).stat().st_size) != entry["bytes"]:
                    return None, f"{name} has {size} bytes instead of {entry['bytes']}"
            if meta["fingerprint"] != key:
                return None, "meta.json belongs to another data set"
            beside = {path.relative_to(folder) for path in _files(folder)}
            if foreign := {str(p) for p in beside if p.parts[0] != DERIVED} - {*meta["files"], META}:
                return None, f"{min(foreign)} does not belong to this data set"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            return None, f"{type(exc).__name__}: {exc}"
        return meta, ""

    def verified(self, key: str) -> tuple[Meta | None, str]:
        """Like ``find``, and verify every byte, unless another process of this launcher and node has done so.

        ``node_lock`` makes them take turns.
        """
        meta, why = self.find(key)
        return (None, why) if meta is None else self._verified(key, meta)

    def node_lock(self, key: str, waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """Lock for verifying the data set on this node; other nodes verify at the same time."""
        return self.lock(f"{key}-{node()}", waiting)

    def _verified(self, key: str, meta: Meta) -> tuple[Meta | None, str]:
        folder, note = self.folder(key), self._notes / f"{key}-{node()}"
        try:
            now: JsonObject = {
                "starter": starter(),
                "files": {n: _stamp(folder / n) for n in [*meta["files"], META]},
            }
            # The launcher's id is a part: each start reads the bytes once.
            if recall(note) == now:
                return meta, ""
            for name, entry in meta["files"].items():
                if block_digest(folder / name) != entry["sha256"]:
                    return None, f"{name} differs from what was written: its bytes have changed"
        except (OSError, KeyError, TypeError) as exc:
            return None, f"{type(exc).__name__}: {exc}"
        remember(note, now)
        return meta, ""

    @contextmanager
    def lock(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Lock for preparing this data set.

        ``waiting()`` is called every second while another process holds it.
        """
        from filelock import FileLock, Timeout

        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._locks / f"{key}.lock")
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=1.0)
                except Timeout:
                    waiting()
        except OSError as exc:
            raise cannot_write(self.root, exc) from exc
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def staged(self, key: str) -> Iterator[Path]:
        """Yield a new folder to write into (the lock is held); it is removed unless it was published."""
        # In the same folder, so that the rename stays within one file system.
        stage = self.root / f".stage-{key}-{uuid.uuid4().hex[:8]}"
        try:
            for left in self.root.glob(f".stage-{key}-*"):  # left by a process that died: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            stage.mkdir(parents=True)
            yield stage
        except OSError as exc:
            raise cannot_write(stage, exc) from exc
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def publish(self, stage: Path, key: str, meta: Mapping[str, Json]) -> None:
        """Write ``meta.json``, fsync everything and rename.

        An existing damaged folder is moved away first.
        """
        files = _files(stage)
        entries = {
            str(p.relative_to(stage)): {"bytes": p.stat().st_size, "sha256": block_digest(p)} for p in files
        }
        # As it is read back: tuples become lists, and the digest is of what was read.
        content = json.loads(json.dumps({**meta, "fingerprint": key, "files": entries}))
        (stage / META).write_text(json.dumps({**content, "check": digest_of(content)}, indent=1), "utf-8")
        # Before the rename: after a power cut the name must not stand for empty files.
        for path in [*files, stage / META, stage]:
            _sync(path)
        target = self.folder(key)
        if target.exists():
            damaged = self.root / f".stage-{key}-damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            target.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        # The name appears with all of its files, or not at all
        stage.rename(target)
        # The rename is an entry of this folder
        _sync(self.root)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if not p.is_dir())


def save_index(path: Path, index: np.ndarray) -> None:
    """Write int64 [n] row indices as .npy."""
    np.save(path, index.astype(np.int64, copy=False), allow_pickle=False)


def load_index(path: Path) -> np.ndarray:
    """Read what ``save_index`` wrote."""
    return np.load(path, allow_pickle=False)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, exc: OSError) -> DataError:
    """Return the error for a cache on a full, read-only or missing disk."""
    return DataError(launch_codes.DATA_CACHE_WRITE(str(path), exc.strerror or str(exc)))


def _stamp(path: Path) -> list[int]:
    """Return values that change when a file is written or replaced. Raises OSError."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
