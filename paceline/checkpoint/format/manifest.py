"""The manifest and its JSON: every file with size and hash, and the place of each tensor. No torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from paceline.checkpoint import codes
from paceline.checkpoint.errors import newer
from paceline.checkpoint.format.block_hashes import SHA256, BlockSizes
from paceline.checkpoint.format.strict_json import dump_object, parse_object
from paceline.checkpoint.format.tensor_index import TensorRows, parse_index
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject
from paceline.core.package import PACKAGE_VERSION

MANIFEST = "manifest.json"
STATE = "state.json"
HF_FOLDER = "hf"
TEMPLATES_FOLDER = "additional_chat_templates"  # within it: Transformers' name
FORMAT = "paceline-checkpoint"
VERSION = 3  # 1 had one sha256 a file and no index, 2 leaves hashed by sha256; they stay readable
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
MAX_ITEMS = 8_000_000  # values in a manifest
MAX_FILES = 100_000

# No leading dot and no slash: such a name leads neither out of the folder nor to a hidden file.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_Invalid = Callable[[str], CheckpointError]


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and lower-case hex sha256 of one file.

    From version 2 on a shard has the hashes of its ``blocks`` in place of one hash. ``data`` is the length of
    its header in bytes; its tensors follow.
    """

    bytes: int
    sha256: str = ""
    data: int = 0
    blocks: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        if self.blocks:
            return {"bytes": self.bytes, "data": self.data, "blocks": list(self.blocks)}
        return {"bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class Manifest:
    """``sequence`` grows with every checkpoint published in a run; the largest is the newest at any step.

    ``tensors``: encoded name → its blocks' places; None in version 1, where the shards' headers hold them.
    """

    step: int
    sequence: int
    world_size: int
    created: float  # unix seconds
    files: Mapping[str, FileEntry]
    paceline_version: str = PACKAGE_VERSION
    tensors: Mapping[str, TensorRows] | None = None
    grain: BlockSizes = field(default_factory=BlockSizes)

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the files with tensors, sorted: the index has their numbers in this order."""
        return shards_of(self.files)

    @property
    def version(self) -> int:
        """The lowest format version that can hold this manifest."""
        return 1 if self.tensors is None else 2 if self.grain.leaf_hash == SHA256 else VERSION

    def to_bytes(self) -> bytes:
        content: JsonObject = {
            "format": FORMAT,
            "version": self.version,
            "step": self.step,
            "sequence": self.sequence,
            "world_size": self.world_size,
            "created": self.created,
            "paceline_version": self.paceline_version,
            "files": {name: entry.to_json() for name, entry in sorted(self.files.items())},
        }
        if self.tensors is not None:
            content["block_bytes"], content["leaf_bytes"] = self.grain.block_bytes, self.grain.leaf_bytes
            if self.version > 2:
                content["leaf_hash"] = self.grain.leaf_hash
            content["tensors"] = {name: rows.to_json() for name, rows in sorted(self.tensors.items())}
        # Readable at the top, one line an entry below: tens of thousands of lines otherwise.
        return dump_object({**content, "digest": digest_of(content)}, MANIFEST, one_line_below=2)

    @staticmethod
    def from_bytes(data: bytes, where: str) -> Manifest:
        """Parse and validate.

        Raises CheckpointError ``checkpoint.json``, ``checkpoint.manifest`` or ``checkpoint.newer``.
        """
        parsed = parse_object(data, where, max_bytes=MAX_MANIFEST_BYTES, max_depth=6, max_items=MAX_ITEMS)
        return _manifest(parsed, where)


def shards_of(files: Mapping[str, FileEntry]) -> tuple[str, ...]:
    """Return the sorted names of the files with tensors."""
    return tuple(sorted(name for name in files if name.endswith(".safetensors")))


def digest_of(content: Mapping[str, Json]) -> str:
    """Return the sha256 of the manifest's content, since no other file holds a hash of the manifest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def is_safe_name(name: str) -> bool:
    """Whether ``name`` is a plain file name, or a side file's under ``hf/``."""
    return _NAME.fullmatch(name) is not None or (
        name.startswith(f"{HF_FOLDER}/") and is_side_name(name.removeprefix(f"{HF_FOLDER}/"))
    )


def is_side_name(name: str) -> bool:
    """Whether ``name`` is a plain file name without a leading dot, or one in the folder of chat templates."""
    return _NAME.fullmatch(name.removeprefix(f"{TEMPLATES_FOLDER}/")) is not None


def folders_of(names: Iterable[str]) -> list[str]:
    """Return the folders of these files, outer ones first."""
    return sorted({str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."})


_KEYS = {"format", "version", "step", "sequence", "world_size", "created", "paceline_version", "files"}
_KEYS_2 = _KEYS | {"block_bytes", "leaf_bytes", "tensors"}
_KEYS_OF = {1: _KEYS, 2: _KEYS_2, 3: _KEYS_2 | {"leaf_hash"}}


def _manifest(data: JsonObject, where: str) -> Manifest:
    def invalid(problem: str) -> CheckpointError:
        return CheckpointError(codes.CHECKPOINT_MANIFEST(where, problem[:200]))

    # Format and version first: they decide what else to expect.
    if data.get("format") != FORMAT:
        raise invalid(f"format {data.get('format')!r}, expected {FORMAT!r}")
    version = data.get("version")
    if type(version) is int and version > VERSION:
        raise newer(where, version, VERSION, str(data.get("paceline_version", "")))
    if type(version) is not int or version < 1:
        raise invalid(f"version {version!r}, this Paceline reads 1 to {VERSION}")
    data = dict(data)
    digest = data.pop("digest", None)  # checkpoints of the first days have none
    # Unknown keys are an error, not a later format: that one has another version.
    if strange := set(data) ^ _KEYS_OF[version]:
        raise invalid(f"keys {sorted(strange)[:5]} are missing or unknown")
    if digest != digest_of(data) and (digest is not None or version > 1):
        raise invalid("its digest differs from the one that was written")
    # Types and ranges of the scalars, then every file entry, then the index.
    step, sequence = (
        _whole(data["step"], 0, "step", invalid),
        _whole(data["sequence"], 0, "sequence", invalid),
    )
    world_size = _whole(data["world_size"], 1, "world_size", invalid)
    created, written_by = data["created"], data["paceline_version"]
    if not isinstance(created, (int, float)) or isinstance(created, bool):
        raise invalid(f"created: {created!r}")
    if not isinstance(written_by, str):
        raise invalid("paceline_version is not text")
    grain = BlockSizes()
    if version > 1:
        block, leaf = (_whole(data[key], 1, key, invalid) for key in ("block_bytes", "leaf_bytes"))
        grain = BlockSizes(block, leaf, str(data.get("leaf_hash", SHA256)))
        if not grain.is_sound:
            leaves = f"leaves of {grain.leaf_bytes} hashed by {grain.leaf_hash[:20]!r}"
            raise invalid(f"blocks of {grain.block_bytes} bytes with {leaves}")
    files = _files(data["files"], None if version == 1 else grain, invalid)
    tensors: dict[str, TensorRows] | None = None
    if version > 1:
        try:
            tensors = parse_index(data["tensors"], len(shards_of(files)))
        except ValueError as exc:
            raise invalid(str(exc)) from None
    return Manifest(step, sequence, world_size, float(created), files, written_by, tensors, grain)


def _whole(value: Json, least: int, field_name: str, invalid: _Invalid) -> int:
    # Up to 2**53, which every JSON reader holds exactly; type(), since True is an int.
    if type(value) is int and least <= value < 1 << 53:
        return value
    raise invalid(f"{field_name}: {value!r}")


def _files(entries: Json, grain: BlockSizes | None, invalid: _Invalid) -> dict[str, FileEntry]:
    """Return the checked entries; ``grain`` is None in version 1."""
    if not isinstance(entries, dict) or not 0 < len(entries) <= MAX_FILES:
        raise invalid(f"files: between 1 and {MAX_FILES} are allowed")
    files: dict[str, FileEntry] = {}
    for name, entry in entries.items():
        if not is_safe_name(name) or name == MANIFEST:
            raise invalid(f"the file name {name!r}")
        blocked = grain is not None and name.endswith(".safetensors")
        keys = {"bytes", "data", "blocks"} if blocked else {"bytes", "sha256"}
        if not isinstance(entry, dict) or set(entry) != keys:
            raise invalid(f"the entry of {name!r}")
        num_bytes = _whole(entry["bytes"], 0, f"bytes of {name!r}", invalid)
        if grain is None or not blocked:
            if not _is_hash(entry["sha256"]):
                raise invalid(f"sha256 of {name!r}")
            files[name] = FileEntry(num_bytes, str(entry["sha256"]))
            continue
        start, blocks = _whole(entry["data"], 8, f"data of {name!r}", invalid), entry["blocks"]
        if start > num_bytes:
            raise invalid(f"the header of {name!r} is longer than the file")
        if not isinstance(blocks, list) or len(blocks) != grain.blocks(num_bytes):
            raise invalid(f"the number of blocks of {name!r}")
        if not all(_is_hash(block) for block in blocks):
            raise invalid(f"the blocks of {name!r}")
        files[name] = FileEntry(num_bytes, "", start, tuple(map(str, blocks)))
    return files


def _is_hash(value: Json) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


CONVERTED = "converted_from"  # in its state: of which program it was, in words
