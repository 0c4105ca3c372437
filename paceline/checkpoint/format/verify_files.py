"""Folders of checkpoints and their names, and verification of files against the manifest. No torch."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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
from paceline.core.files import MAX_CONFIG_BYTES, listed
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
            # ``lstat`` of the resolved path: a link made in between is not followed.
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
    """Return a message with the bytes that have another hash."""
    first, last = block * grain.block_bytes, min(entry.bytes, (block + 1) * grain.block_bytes)
    return f"bytes {first} to {last}: hash {digest[:12]}… instead of {entry.blocks[block][:12]}…"


def open_part(checkpoint: Path, name: str) -> BinaryIO:
    """Open a file of a checkpoint.

    Raises CheckpointError: ``checkpoint.incomplete`` if it is missing (also if pruned meanwhile), another
    code for example for a link that leads outside.
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
    """Return the path of a checkpoint's file, with links resolved."""
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

    The checkpoint's folder may be a link. In the Hugging Face cache, a snapshot's files are links to blobs of
    the same repository.
    """
    root, target = Path(os.path.realpath(checkpoint)), Path(os.path.realpath(path))
    if target.is_relative_to(root):
        return target
    for folder in root.parents:
        if folder.name.startswith(_REPOSITORIES) and root.is_relative_to(folder / "snapshots"):
            # The hub's cache links ``snapshots/REVISION/file`` to ``blobs/HASH`` of the same repository.
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


LATEST, BEST, VERIFIED = "latest", "best", "verified"  # hints beside the checkpoints: text files with a name
# Eight digits sort as text; up to fifteen are read, for runs of very many steps.
_STEP = re.compile(r"step-(\d{8,15})")
_ASIDE = re.compile(r"\.(replaced|trash|staging)-(step-\d{8,15})-[0-9a-f]+")
_LEFTOVER = re.compile(r"\.(staging|fetching|trash)-step-\d{8,15}-[0-9a-f]+")
_HINT_LEFT = re.compile(r"\.(latest|best|verified)\.[0-9a-f]+")
MAX_HINT_BYTES = 64


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder that is or was meant to be a checkpoint.

    ``problem``: why it cannot be used (sizes are checked, hashes are not).
    """

    path: Path
    name: str
    manifest: Manifest | None
    problem: CheckpointError | None

    @property
    def step(self) -> int:
        return step_of(self.name)

    @property
    def age_key(self) -> tuple[int, int]:
        """Sort key by publication; folders without a manifest come first, by step."""
        return (self.manifest.sequence, self.manifest.step) if self.manifest else (-1, self.step)


def aside_name(use: str, step_name: str, nonce: str | None = None) -> str:
    """Return the name of a folder beside the checkpoints: ``staging`` (a save), ``fetching`` (from another
    node), ``replaced`` or ``trash`` (being removed).
    """
    return f".{use}-{step_name}-{nonce or os.urandom(6).hex()}"


def shard_name(rank: int, world_size: int) -> str:
    return f"shard-{rank:05d}-of-{world_size:05d}.safetensors"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of_folder(folder: str, *uses: str) -> str | None:
    """Return the step's name of a folder that is ``replaced``, ``trash`` (being removed) or ``staging`` (a
    save that is not published yet). None for any other folder.
    """
    match = _ASIDE.fullmatch(folder)
    return match[2] if match and match[1] in uses else None


def unfinished(folder: Path) -> list[Path]:
    """Return the folders of interrupted saves and removals."""
    return [folder / name for name in _names(folder) if _LEFTOVER.fullmatch(name)]


def is_step_name(name: str) -> bool:
    return _STEP.fullmatch(name) is not None


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(name.removeprefix("step-"))


def scan(folder: Path) -> list[CheckpointFolder]:
    """Return every published checkpoint in ``folder``, oldest first, including links to some on another disk.

    If a step was being replaced, the old folder counts while the new one is not complete.
    """
    names = _names(folder)
    links = entries(folder, os.DirEntry.is_symlink)
    checkpoints = [examine_folder(folder / name, name) for name in (*names, *links) if is_step_name(name)]
    complete = {checkpoint.name for checkpoint in checkpoints if checkpoint.problem is None}
    for name in names:
        step = step_of_folder(name, "replaced")
        if step is not None and step not in complete:
            # A kill between the two renames of a replacement: the old folder still is the step's
            # checkpoint.
            checkpoints.append(examine_folder(folder / name, step))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.age_key)


def leftovers(folder: Path, checkpoints: Sequence[CheckpointFolder] | None = None) -> list[Path]:
    """Return folders of interrupted saves, and replaced checkpoints whose successor is complete.

    ``checkpoints``: the result of ``scan``, if already known.
    """
    names = _names(folder)
    kept = {f.path.name for f in (scan(folder) if checkpoints is None else checkpoints)}
    return [
        folder / name
        for name in names
        if _LEFTOVER.fullmatch(name) or (step_of_folder(name, "replaced") and name not in kept)
    ]


def leftover_hints(folder: Path) -> list[Path]:
    """Return temporary hint files that were never renamed."""
    return [path for path in listed(folder, ".*") if _HINT_LEFT.fullmatch(path.name)]


def read_hint(path: Path) -> str | None:
    """Return the step name in ``latest`` or ``best``; None if missing or not a step name."""
    try:
        # O_NONBLOCK: opening a pipe that somebody put there must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, MAX_HINT_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)
    return text if is_step_name(text) else None


def entries(folder: Path, keep: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """Return the sorted names of the folder's entries that ``keep`` accepts; none without the folder."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if keep(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(folder: Path) -> list[str]:
    return entries(folder, lambda entry: entry.is_dir(follow_symlinks=False))


def examine_folder(path: Path, name: str) -> CheckpointFolder:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(path)
        check_name(path, manifest)
        check_sizes(path, manifest)
    except CheckpointError as problem:
        return CheckpointFolder(path, name, manifest, problem)
    return CheckpointFolder(path, name, manifest, None)
