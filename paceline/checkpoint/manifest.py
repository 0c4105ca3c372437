"""The manifest: the files of a checkpoint, with size and sha256 of each. No torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import paceline
from paceline.checkpoint import codes
from paceline.checkpoint.strictjson import dump_object, parse_object
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject

MANIFEST = "manifest.json"
STATE = "state.json"
HF_FOLDER = "hf"
FORMAT = "paceline-checkpoint"
VERSION = 1
MAX_MANIFEST_BYTES = 8 * 1024 * 1024
MAX_FILES = 100_000
PICKLE_SUFFIXES = (
    ".bin",
    ".pt",
    ".pth",
    ".pkl",
    ".pickle",
    ".ckpt",
    ".joblib",
    ".npy",
    ".npz",
    ".tar",
    ".dill",
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Errors on opening a file that do not mean that the file is damaged.
_OF_THE_MACHINE = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ESTALE,
        errno.EINTR,
        errno.ETIMEDOUT,
    }
)
_BLOCK = 8 * 1024 * 1024
_AT_ONCE = 8  # files hashed at a time


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and lower-case hex sha256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``sequence`` grows with every checkpoint published in a run; the largest is the newest at any step."""

    step: int
    sequence: int
    world_size: int
    created: float  # unix seconds
    files: Mapping[str, FileEntry]
    paceline_version: str = paceline.__version__

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def to_bytes(self) -> bytes:
        files: JsonObject = {
            name: {"bytes": e.bytes, "sha256": e.sha256} for name, e in sorted(self.files.items())
        }
        content: JsonObject = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "sequence": self.sequence,
            "world_size": self.world_size,
            "created": self.created,
            "paceline_version": self.paceline_version,
            "files": files,
        }
        return dump_object({**content, "digest": digest_of(content)}, MANIFEST)

    @staticmethod
    def from_bytes(data: bytes, where: str) -> Manifest:
        """Parse and validate. Raises CheckpointError ``checkpoint.json`` or ``checkpoint.manifest``."""
        return _manifest(parse_object(data, where, max_bytes=MAX_MANIFEST_BYTES, max_depth=4), where)


def digest_of(content: Mapping[str, Json]) -> str:
    """Return the sha256 of the manifest's content: no other file vouches for the manifest itself."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def is_safe_name(name: str) -> bool:
    """Whether ``name`` is a plain file name, or one under ``hf/``, without a leading dot."""
    folder, _, base = name.rpartition("/")
    return folder in ("", HF_FOLDER) and _NAME.fullmatch(base) is not None


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises CheckpointError ``checkpoint.incomplete`` if it is missing."""
    path = checkpoint / MANIFEST
    try:
        with open_regular(path) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise incomplete(checkpoint, "manifest.json is missing") from None
    manifest = Manifest.from_bytes(data, str(path))
    if STATE not in manifest.files:
        raise incomplete(checkpoint, "manifest.json does not list state.json")
    return manifest


def check_sizes(checkpoint: Path, manifest: Manifest) -> None:
    """Quick check: every file is regular and of the right size, and there are no pickles.

    Raises CheckpointError.
    """
    for name, entry in manifest.files.items():
        try:
            info = os.lstat(checkpoint / name)
        except FileNotFoundError:
            raise incomplete(checkpoint, f"{name} is missing") from None
        if not stat.S_ISREG(info.st_mode):
            raise damaged(checkpoint, name, "it is not a regular file (a link, a folder or a device)")
        if info.st_size != entry.bytes:
            raise damaged(checkpoint, name, f"{info.st_size} bytes instead of {entry.bytes}")
    for folder in (checkpoint, checkpoint / HF_FOLDER):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix.lower() in PICKLE_SUFFIXES:
                raise foreign_file(path)


def verify(checkpoint: Path, manifest: Manifest, *, tensors: bool = True) -> None:
    """Check sizes, then the sha256 of each file, several at a time.

    Without ``tensors`` skip the safetensors files.

    Raises CheckpointError naming the first file that differs.
    """
    check_sizes(checkpoint, manifest)

    def compare(name: str) -> None:
        with open_regular(checkpoint / name) as file:
            verify_open(file, manifest.files[name], checkpoint, name)

    names = [name for name in manifest.files if tensors or not name.endswith(".safetensors")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # hashlib releases the GIL
        for _ in pool.map(compare, names):
            pass


def verify_open(file: BinaryIO, entry: FileEntry, checkpoint: Path, name: str) -> None:
    """Check the sha256 of an open file and rewind it, so that the bytes read later are the verified ones."""
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    file.seek(0)
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise damaged(checkpoint, name, f"sha256 {digest.hexdigest()[:12]}… instead of {entry.sha256[:12]}…")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading without following a final symlink.

    Raises CheckpointError for links, devices and pipes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as exc:
        if exc.errno in _OF_THE_MACHINE:
            raise unreadable(path, exc) from exc
        raise damaged(path.parent, path.name, f"it cannot be opened: {exc.strerror}") from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise damaged(path.parent, path.name, "it is not a regular file")
    return os.fdopen(fd, "rb")


def incomplete(checkpoint: Path, found: str) -> CheckpointError:
    """Return the error for an unfinished checkpoint."""
    return CheckpointError(
        codes.CHECKPOINT_INCOMPLETE(
            "the checkpoint is incomplete",
            str(checkpoint),
            found,
            "resume from another one: set resume_from_checkpoint: latest",
        )
    )


def damaged(checkpoint: Path, name: str, found: str) -> CheckpointError:
    """Return the error for a file that differs from the manifest."""
    return CheckpointError(
        codes.CHECKPOINT_DAMAGED(
            f"'{name}' differs from the file that was published",
            str(checkpoint),
            found,
            "resume from another checkpoint (resume_from_checkpoint: latest falls back to the previous"
            " complete one)",
            evidence={"file": name},
        )
    )


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that may be intact but cannot be opened on this machine or by this user."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    hint = {
        errno.EMFILE: (
            f"run ulimit -n {max(65_536, 4 * limit)} before the start (the limit here is {limit} open files)"
        ),
        errno.ENFILE: "the machine has too many open files: raise fs.file-max",
        errno.EACCES: "give this user read permission",
        errno.EPERM: "give this user read permission",
    }.get(error.errno or 0, "try again: the file system returned an error")
    what = f"'{path.name}' cannot be opened here; there is no sign that it is damaged"
    return CheckpointError(
        codes.CHECKPOINT_UNREADABLE(what, str(path.parent), error.strerror or str(error), hint)
    )


def foreign_file(path: Path) -> CheckpointError:
    """Return the error for a file type that can carry code."""
    return CheckpointError(
        codes.CHECKPOINT_FOREIGN_FILE(
            f"'{path.name}' has a pickle suffix, and pickle files can run code; Paceline writes"
            " only safetensors and JSON",
            str(path.parent),
            path.name,
            "find out where it comes from, then remove it; convert foreign weights to safetensors",
        )
    )


def _manifest(data: JsonObject, where: str) -> Manifest:
    def invalid(what: str) -> CheckpointError:
        hint = "resume from another checkpoint"
        return CheckpointError(
            codes.CHECKPOINT_MANIFEST("the manifest is not valid", where, what[:200], hint)
        )

    def whole(value: Json, least: int, what: str) -> int:
        if type(value) is int and least <= value < 1 << 53:
            return value
        raise invalid(f"{what}: {value!r}")

    # Format and version first: they decide what else to expect.
    if data.get("format") != FORMAT:
        raise invalid(f"format {data.get('format')!r}, expected {FORMAT!r}")
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise invalid(f"version {data.get('version')!r}, this Paceline reads {VERSION}")
    known = {"format", "version", "step", "sequence", "world_size", "created", "paceline_version", "files"}
    data = dict(data)
    digest = data.pop("digest", None)  # older checkpoints have none
    if set(data) != known:
        raise invalid(f"keys {sorted(set(data) ^ known)[:5]} are missing or unknown")
    if digest is not None and digest != digest_of(data):
        raise invalid("its digest differs from the one that was written")
    # Types and ranges of the scalars, then every file entry.
    step, sequence = whole(data["step"], 0, "step"), whole(data["sequence"], 0, "sequence")
    world_size = whole(data["world_size"], 1, "world_size")
    created, version, entries = data["created"], data["paceline_version"], data["files"]
    if not isinstance(created, (int, float)) or isinstance(created, bool):
        raise invalid(f"created: {created!r}")
    if not isinstance(version, str):
        raise invalid("paceline_version is not text")
    if not isinstance(entries, dict) or not 0 < len(entries) <= MAX_FILES:
        raise invalid(f"files: between 1 and {MAX_FILES} are allowed")
    files: dict[str, FileEntry] = {}
    for name, entry in entries.items():
        if not is_safe_name(name) or name == MANIFEST:
            raise invalid(f"the file name {name!r}")
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise invalid(f"the entry of {name!r}")
        num_bytes, sha256 = whole(entry["bytes"], 0, f"bytes of {name!r}"), entry["sha256"]
        if not isinstance(sha256, str) or _SHA256.fullmatch(sha256) is None:
            raise invalid(f"sha256 of {name!r}")
        files[name] = FileEntry(num_bytes, sha256)
    return Manifest(step, sequence, world_size, float(created), files, version)
