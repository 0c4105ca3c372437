"""Read a checkpoint: verify hashes, then parse headers, then read the requested blocks."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.manifest import (
    HF_FOLDER,
    STATE,
    Manifest,
    check_sizes,
    damaged,
    open_regular,
    read_manifest,
    verify_open,
)
from paceline.checkpoint.names import TensorName, decode_place
from paceline.checkpoint.strictjson import parse_object
from paceline.checkpoint.tensorfile import Slot, read_header, read_rows
from paceline.checkpoint.ties import MAX_STATE_BYTES, check_name, check_state
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject

KEPT_FREE = 512  # open files besides a checkpoint's: sockets, logs, data
MAX_SIDE_FILE_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True)
class _Block:
    """One stored block of a tensor."""

    file: BinaryIO
    slot: Slot
    offsets: tuple[int, ...]
    global_shape: tuple[int, ...]


def room_for(files: int) -> None:
    """Raise the soft limit of open files if it is too low for ``files`` and the hard limit allows it.

    A checkpoint of 1,000 ranks has as many files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + KEPT_FREE
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class CheckpointReader:
    """An open published checkpoint. Implements ``protocols.shard.ShardReader``; a context manager.

    Every file is opened once, its sha256 is verified, and it is read through the same descriptor afterwards.
    """

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        self.path = path
        self.manifest: Manifest = read_manifest(path)
        check_name(path, self.manifest)
        check_sizes(path, self.manifest)
        room_for(len(self.manifest.files))
        self._files = ExitStack()
        self._blocks: dict[TensorName, list[_Block]] = {}
        self._side: dict[str, BinaryIO] = {}
        try:
            for name in self.manifest.files:
                self._open(name, verify)
            self.state: JsonObject = parse_object(
                self._side[STATE].read(), str(path / STATE), max_bytes=MAX_STATE_BYTES
            )
            check_state(path, self.manifest, self.state)
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """The number of finished optimizer steps."""
        return self.manifest.step

    def names(self) -> Iterator[TensorName]:
        """Iterate over all tensors, sorted."""
        return iter(sorted(self._blocks, key=lambda n: (n.role, n.name, n.kind)))

    def roles(self) -> tuple[str, ...]:
        return tuple(sorted({n.role for n in self._blocks}))

    def has(self, role: str, name: str, kind: str) -> bool:
        return TensorName(role, kind, name) in self._blocks

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        """Return the kinds stored for a parameter: ``param`` and its optimizer states."""
        return tuple(sorted(n.kind for n in self._blocks if n.role == role and n.name == name))

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        """Return the shape of the full tensor."""
        return self._of(role, name, kind)[0].global_shape

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype:
        return self._of(role, name, kind)[0].slot.dtype

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """Return the full tensor on the CPU. Raises CheckpointError if any part of it is not stored."""
        shape = self.shape(role, name, kind)
        return self.read_block(role, name, kind, (0,) * len(shape), shape)

    def read_block(
        self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]
    ) -> Tensor:
        """Return the block of ``shape`` at ``offsets`` on the CPU, assembled from the saved blocks.

        Only overlapping rows are read. Raises CheckpointError if a part of it is not stored.
        """
        blocks = self._of(role, name, kind)
        for block in blocks:
            if block.offsets == offsets and block.slot.shape == shape:
                return read_rows(block.file, block.slot, 0, shape[0] if shape else 1)
        # `covered` marks the elements found: several blocks, or a part of one, may leave gaps.
        result = torch.empty(shape, dtype=blocks[0].slot.dtype)
        covered = (
            torch.zeros(shape, dtype=torch.bool)
            if len(blocks) > 1 or blocks[0].slot.shape != blocks[0].global_shape
            else None
        )
        for block in blocks:
            # The overlap of the saved block with the requested one; read its rows, then copy the columns.
            low = [max(a, b) for a, b in zip(offsets, block.offsets, strict=True)]
            high = [
                min(a + n, b + m)
                for a, n, b, m in zip(offsets, shape, block.offsets, block.slot.shape, strict=True)
            ]
            if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
                continue
            rows = read_rows(block.file, block.slot, low[0] - block.offsets[0], high[0] - low[0])
            source = (
                slice(None),
                *(
                    slice(lo - b, hi - b)
                    for lo, hi, b in zip(low[1:], high[1:], block.offsets[1:], strict=True)
                ),
            )
            target = tuple(slice(lo - a, hi - a) for lo, hi, a in zip(low, high, offsets, strict=True))
            result[target] = rows[source]
            if covered is not None:
                covered[target] = True
        if covered is not None and not bool(covered.all()):
            missing = prod(shape) - int(covered.sum())
            raise CheckpointError(
                codes.CHECKPOINT_TENSOR_INCOMPLETE(
                    f"{missing} elements of '{name}' ({kind}) of {role} are not stored", str(self.path)
                )
            )
        return result

    def side_files(self) -> tuple[str, ...]:
        """Return the names of the Hugging Face side files (``config.json``, tokenizer files)."""
        return tuple(
            n.removeprefix(f"{HF_FOLDER}/") for n in self.manifest.files if n.startswith(f"{HF_FOLDER}/")
        )

    def side_file(self, name: str) -> bytes:
        """Return the verified content of a Hugging Face side file. Raises KeyError."""
        file = self._side[f"{HF_FOLDER}/{name}"]
        file.seek(0)
        return file.read(MAX_SIDE_FILE_BYTES)

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        self._files.close()

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _of(self, role: str, name: str, kind: str) -> list[_Block]:
        blocks = self._blocks.get(TensorName(role, kind, name))
        if blocks is None:
            raise CheckpointError(
                codes.CHECKPOINT_NO_TENSOR(
                    f"the checkpoint contains no '{kind}' of '{name}' for the {role}",
                    str(self.path),
                    f"kinds stored for it: {', '.join(self.kinds(role, name)) or 'none'}",
                    "resume with the model, algorithm and optimizer that saved it",
                )
            )
        return blocks

    def _open(self, name: str, verify: bool) -> None:
        file = self._files.enter_context(open_regular(self.path / name))
        if verify:
            verify_open(file, self.manifest.files[name], self.path, name)
        if not name.endswith(".safetensors"):
            self._side[name] = file
            return
        slots, metadata = read_header(file, self.path, name)
        for encoded, slot in slots.items():
            try:
                key = TensorName.decode(encoded)
                whole, offsets = decode_place(encoded, metadata, slot.shape)
            except (ValueError, RecursionError) as exc:
                raise damaged(self.path, name, str(exc)[:300]) from None
            blocks = self._blocks.setdefault(key, [])
            if blocks and (blocks[0].global_shape != whole or blocks[0].slot.dtype != slot.dtype):
                raise damaged(
                    self.path, name, f"'{encoded}' has another shape or dtype than in another shard"
                )
            blocks.append(_Block(file, slot, offsets, whole))
