"""Prepared sets on disk: one folder a fingerprint, published by a rename, checked when opened."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError

TOKENS, TRAIN, EVAL, META, TOKENIZER = "tokens.arrow", "train.npy", "eval.npy", "meta.json", "tokenizer"


class Store:
    """The cache of prepared sets under ``cache_dir``."""

    def __init__(self, cache_dir: Path) -> None:
        self.root = cache_dir / "prepared"
        self._locks = cache_dir / "locks"

    def folder(self, key: str) -> Path:
        """Where the set of this fingerprint lies, or will lie."""
        return self.root / key

    def find(self, key: str) -> tuple[dict[str, Any] | None, str]:
        """(what ``meta.json`` says, "") of a whole set; (None, why) when there is none or it is damaged."""
        folder = self.folder(key)
        if not folder.is_dir():
            return None, ""
        try:
            meta = json.loads((folder / META).read_text("utf-8"))
            for name, size in meta["files"].items():
                if (folder / name).stat().st_size != size:
                    return None, f"{name} has {(folder / name).stat().st_size} bytes instead of {size}"
            if meta["fingerprint"] != key:
                return None, "meta.json belongs to another set"
        except (OSError, ValueError, KeyError, TypeError) as exc:
            return None, f"{type(exc).__name__}: {exc}"
        return meta, ""

    @contextmanager
    def lock(self, key: str, waiting: Any) -> Iterator[None]:
        """Held by the process that prepares this set; ``waiting()`` is called each second while another holds it."""
        from filelock import FileLock, Timeout

        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._locks / f"{key}.lock")
            while True:
                try:
                    lock.acquire(timeout=1.0)
                    break
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
        """A fresh folder to write into (the lock is held); gone afterwards unless it was published."""
        stage = self.root / f".stage-{key}-{uuid.uuid4().hex[:8]}"
        try:
            for left in self.root.glob(f".stage-{key}-*"):  # of a process that died: we hold its lock
                shutil.rmtree(left, ignore_errors=True)
            stage.mkdir(parents=True)
            yield stage
        except OSError as exc:
            raise cannot_write(stage, exc) from exc
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def publish(self, stage: Path, key: str, meta: Mapping[str, Any]) -> None:
        """Write ``meta.json``, make everything durable and rename; what was there (damaged) is moved away first."""
        files = sorted(p for p in stage.rglob("*") if p.is_file())
        sizes = {str(p.relative_to(stage)): p.stat().st_size for p in files}
        (stage / META).write_text(json.dumps({**meta, "fingerprint": key, "files": sizes}, indent=1), "utf-8")
        for path in [*files, stage / META, stage]:
            _sync(path)
        target = self.folder(key)
        if target.exists():
            damaged = self.root / f".stage-{key}-damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            target.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        stage.rename(target)
        _sync(self.root)


def save_index(path: Path, index: np.ndarray) -> None:
    """int64 [n] row indices as .npy."""
    np.save(path, index.astype(np.int64, copy=False), allow_pickle=False)


def load_index(path: Path) -> np.ndarray:
    """The inverse of ``save_index``."""
    return np.load(path, allow_pickle=False)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, exc: OSError) -> DataError:
    """The error of a cache on a full, read-only or missing disk."""
    return DataError(
        Diagnostic(
            "data.cache_write",
            "prepared data cannot be written",
            str(path),
            exc.strerror or str(exc),
            "data.cache_dir: a folder with room that can be written to",
        )
    )
