"""Sizes and hashes of the files that a config names: whole where they are small, else of samples."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.files import open_file
from paceline.core.package import PACKAGE
from paceline.doctor.nodes.messages import FileDigest
from paceline.plan.model.read_config import cached_model_dir

if TYPE_CHECKING:
    from paceline.config.schema import Config

WHOLE_BYTES = 64 << 20  # files up to this size are hashed whole
_SAMPLE, _SAMPLES = 1 << 20, 16  # of larger ones: this many pieces, from the first to the last byte
SECONDS = 30.0  # for all files; what comes later has its size alone
_MOST_FILES = 20_000  # of a folder that are looked at, in the order of their names
_NAMED = 200  # files in a message; the rest is one entry


def named_files(
    config: Config, environ: Mapping[str, str], seconds: float = SECONDS
) -> tuple[FileDigest, ...]:
    """Return the model's and the data's files that are on this machine."""
    deadline = time.monotonic() + seconds
    digests = []
    for key, path in _paths(config, environ).items():
        for file in islice(_files(path), _MOST_FILES):
            name = file.name if file == path else str(file.relative_to(path))
            try:
                size = file.stat().st_size
                digest = digest_of(file, size) if time.monotonic() < deadline else ""
            except OSError as error:
                digests.append(FileDigest(key, name, -1, error.strerror or "unreadable"))
            else:
                digests.append(FileDigest(key, name, size, digest))
        if not path.exists():
            digests.append(FileDigest(key, str(path), -1, "missing"))
    return _bounded(digests)


def _bounded(digests: list[FileDigest]) -> tuple[FileDigest, ...]:
    first, rest = digests[:_NAMED], digests[_NAMED:]
    if not rest:
        return tuple(first)
    whole = hashlib.sha256("\n".join(map(repr, rest)).encode()).hexdigest()[:16]
    return (*first, FileDigest(rest[0].key, f"{len(rest)} further files", sum(f.size for f in rest), whole))


def _paths(config: Config, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the files and folders by key. A name of the hub is the folder in its cache, if it is there."""
    paths = {}
    names = {"model.name_or_path": config.model.name_or_path, "model.tokenizer": config.model.tokenizer}
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    for key, name in names.items():
        if not name:
            continue
        local = Path(name).expanduser()
        folder = local if local.exists() else cached_model_dir(name, config.model.revision, cache)
        if folder is not None:
            paths[key] = folder
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for number, section in enumerate(sections):
            path = Path(section.path).expanduser()
            if path.suffix or path.exists():  # else a name of the hub, or of a function
                paths[f"{key}.{number}.path"] = path
    return {key: path for key, path in paths.items() if "://" not in str(path) and ":" not in path.name}


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for folder, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith("."))
            yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))


def digest_of(file: Path, size: int) -> str:
    """Return a hash of a file: of its bytes, or of its size and samples over its whole length."""
    hashed = hashlib.sha256(str(size).encode())
    with open_file(file) as stream:
        if size <= WHOLE_BYTES:
            while part := stream.read(_SAMPLE):
                hashed.update(part)
        else:
            for number in range(_SAMPLES):
                stream.seek((size - _SAMPLE) * number // (_SAMPLES - 1))
                hashed.update(stream.read(_SAMPLE))
    return hashed.hexdigest()[:16]


def source_digest(package: str) -> str:
    """Return a hash of the file that ``import package`` reads first; ``none`` without one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return "none"
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


def package_digest() -> str:
    """Return a hash of this package's own sources: two checkouts of one version may differ."""
    hashed = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        hashed.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    return hashed.hexdigest()[:12]
