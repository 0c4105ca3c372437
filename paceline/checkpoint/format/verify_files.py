"""The files of a checkpoint against its manifest: sizes, hashes, and the step that they name. No torch."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged, incomplete, scattered, unreadable
from paceline.checkpoint.format.block_hashes import BlockSizes, read_block_hash
from paceline.checkpoint.format.manifest import (
    HF_FOLDER,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    STATE,
    TEMPLATES_FOLDER,
    FileEntry,
    Manifest,
    folders_of,
)
from paceline.checkpoint.format.strict_json import parse_object
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import Json, JsonObject

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
    ".distcp",  # torch.distributed.checkpoint
)
_PICKLED_NAMES = (".metadata",)  # torch.distributed.checkpoint's

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
_PIECE = 8 * 1024 * 1024
_AT_ONCE = 8  # files or blocks hashed at a time


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises CheckpointError ``checkpoint.incomplete`` if it is missing."""
    path = checkpoint / MANIFEST
    with open_part(checkpoint, MANIFEST) as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    manifest = Manifest.from_bytes(data, str(path))
    if STATE not in manifest.files:
        raise incomplete(checkpoint, "manifest.json does not list state.json")
    return manifest


def check_sizes(checkpoint: Path, manifest: Manifest) -> None:
    """Quick check: every file is regular and of the right size, and there are no pickles.

    Raises CheckpointError.
    """
    missing: list[str] = []
    for name, entry in manifest.files.items():
        try:
            info = os.lstat(_followed(checkpoint, name))
        except FileNotFoundError:
            missing.append(name)
            continue
        if not stat.S_ISREG(info.st_mode):
            raise damaged(checkpoint, name, "it is not a regular file (a folder or a device)")
        if info.st_size != entry.bytes:
            raise damaged(checkpoint, name, f"{info.st_size} bytes instead of {entry.bytes}")
    if missing:
        raise scattered(checkpoint, missing, len(manifest.files))
    check_foreign(checkpoint)


def check_foreign(checkpoint: Path) -> None:
    """Raise CheckpointError if a file of the checkpoint's folder has the name of a pickle."""
    for folder in (checkpoint, checkpoint / HF_FOLDER, checkpoint / HF_FOLDER / TEMPLATES_FOLDER):
        with suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted(folder.iterdir()):
                if path.suffix.lower() in PICKLE_SUFFIXES or path.name in _PICKLED_NAMES:
                    finding = codes.CHECKPOINT_FOREIGN_FILE(str(folder), path.name, name=path.name)
                    raise CheckpointError(finding)


def verify(checkpoint: Path, manifest: Manifest, *, tensors: bool = True) -> None:
    """Check sizes, then the hash of each file or block, several at a time.

    Without ``tensors`` skip the safetensors files.

    Raises CheckpointError naming the first file that differs.
    """
    check_sizes(checkpoint, manifest)

    def compare(name: str) -> None:
        with open_part(checkpoint, name) as file:
            verify_open(file, manifest.files[name], checkpoint, name)

    def compare_block(block: tuple[str, int]) -> None:
        with open_part(checkpoint, block[0]) as file:
            verify_block(file, manifest.files[block[0]], block[1], manifest.grain, checkpoint, block[0])

    names = [name for name in manifest.files if tensors or not name.endswith(".safetensors")]
    unblocked = [name for name in names if not manifest.files[name].blocks]
    blocks = [(name, number) for name in names for number in range(len(manifest.files[name].blocks))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # hashlib releases the GIL
        for _ in (*pool.map(compare, unblocked), *pool.map(compare_block, blocks)):
            pass


def verify_open(file: BinaryIO, entry: FileEntry, checkpoint: Path, name: str) -> None:
    """Check the sha256 of an open file and rewind it, so that the bytes read later are the verified ones."""
    # The open file is hashed, not its name: what is read later is what was verified.
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while block := file.read(_PIECE):
        digest.update(block)
        size += len(block)
    file.seek(0)
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise damaged(checkpoint, name, f"sha256 {digest.hexdigest()[:12]}… instead of {entry.sha256[:12]}…")


def verify_block(
    file: BinaryIO, entry: FileEntry, block: int, grain: BlockSizes, checkpoint: Path, name: str
) -> None:
    """Check the hash of one block of an open shard. Raises CheckpointError."""
    digest = read_block_hash(file, block, entry.bytes, grain)
    if digest != entry.blocks[block]:
        raise damaged(checkpoint, name, wrong_block(entry, block, grain, digest))


def wrong_block(entry: FileEntry, block: int, grain: BlockSizes, digest: str) -> str:
    """Say which bytes have another hash."""
    first, last = block * grain.block_bytes, min(entry.bytes, (block + 1) * grain.block_bytes)
    return f"bytes {first} to {last}: hash {digest[:12]}… instead of {entry.blocks[block][:12]}…"


def open_part(checkpoint: Path, name: str) -> BinaryIO:
    """Open a file of a checkpoint.

    Raises CheckpointError: ``checkpoint.incomplete`` if it is missing (pruned meanwhile, too), another also
    for a link that leads outside of it.
    """
    if (file := open_if_there(checkpoint, name)) is None:
        raise incomplete(checkpoint, f"{name} is missing")
    return file


def open_if_there(checkpoint: Path, name: str) -> BinaryIO | None:
    """Open a file of a checkpoint; None if it is missing. Raises CheckpointError as ``open_part``."""
    try:
        return open_regular(_followed(checkpoint, name))
    except FileNotFoundError:
        return None


def _followed(checkpoint: Path, name: str) -> Path:
    """Return where a file of a checkpoint lies, through links if there are any."""
    path = checkpoint / name
    if not any((checkpoint / part).is_symlink() for part in (name, *folders_of([name]))):
        return path
    target = target_of(checkpoint, path)
    if target is None:
        raise damaged(
            checkpoint, name, f"a link that leads outside of the checkpoint, to {os.path.realpath(path)}"
        )
    return target


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
    # fstat after open: the name may have been exchanged in between.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise damaged(path.parent, path.name, "it is not a regular file")
    return os.fdopen(fd, "rb")


_REPOSITORIES = ("models--", "datasets--")


def target_of(checkpoint: Path, path: Path) -> Path | None:
    """Return the file that ``path`` in ``checkpoint`` leads to through links; None if it leads outside.

    The checkpoint's own folder may be a link. The Hugging Face cache's files are links of a snapshot to the
    blobs of the same repository.
    """
    root, target = Path(os.path.realpath(checkpoint)), Path(os.path.realpath(path))
    if target.is_relative_to(root):
        return target
    for folder in root.parents:
        if folder.name.startswith(_REPOSITORIES) and root.is_relative_to(folder / "snapshots"):
            return target if target.parent == folder / "blobs" else None
    return None


MAX_STATE_BYTES = 256 * 1024 * 1024
_NAMED = re.compile(r"(?:\.replaced-)?step-(\d{8,15})(?:-[0-9a-f]+)?")
_SHARD = re.compile(r"shard-\d+-of-(\d+)\.safetensors")


def check_name(checkpoint: Path, manifest: Manifest) -> None:
    """Raise CheckpointError if the folder is named after another step, or shards after another world size.

    Reads no files.
    """
    match = _NAMED.fullmatch(checkpoint.name)
    if match and int(match[1]) != manifest.step:
        raise _misplaced(
            checkpoint,
            f"the folder is named step {int(match[1])}, but its manifest is of step {manifest.step}",
        )
    for name in manifest.files:
        shard = _SHARD.fullmatch(name)
        if shard and int(shard[1]) != manifest.world_size:
            raise _misplaced(checkpoint, f"{name} in a checkpoint of {manifest.world_size} ranks")


def check_state(checkpoint: Path, manifest: Manifest, state: Mapping[str, Json]) -> None:
    """Raise CheckpointError if the state's step or world size differs from the manifest's.

    Absent fields pass.
    """
    train = state.get("train")
    step = train.get("step") if isinstance(train, Mapping) else None
    for field_name, mine, theirs in (
        ("step", step, manifest.step),
        ("world_size", state.get("world_size"), manifest.world_size),
    ):
        if mine is not None and mine != theirs:
            raise _misplaced(
                checkpoint, f"{field_name}: {str(mine)[:40]} in state.json, {theirs} in manifest.json"
            )


def read_state(checkpoint: Path) -> JsonObject:
    """Read ``state.json``. Raises CheckpointError."""
    with open_part(checkpoint, STATE) as file:
        return parse_object(
            file.read(MAX_STATE_BYTES + 1), str(checkpoint / STATE), max_bytes=MAX_STATE_BYTES
        )


def read_config(checkpoint: Path) -> JsonObject:
    """Read ``hf/config.json``; empty if it is missing. Raises CheckpointError."""
    path = checkpoint / HF_FOLDER / "config.json"
    file = open_if_there(checkpoint, f"{HF_FOLDER}/config.json")
    if file is None:
        return {}
    with file:
        return parse_object(file.read(MAX_CONFIG_BYTES + 1), str(path), max_bytes=MAX_CONFIG_BYTES)


def _misplaced(checkpoint: Path, disagreement: str) -> CheckpointError:
    return CheckpointError(codes.CHECKPOINT_MISPLACED(str(checkpoint), disagreement))
