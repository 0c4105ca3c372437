"""Read a checkpoint: verify hashes and headers, then read blocks on demand."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.manifest import HF_FOLDER, MANIFEST, STATE, Manifest
from paceline.checkpoint.format.safetensors_file import DTYPE_WORDS, DTYPES, ByteRange, read_header, rows_by
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.format.tensor_index import (
    BlockRow,
    TensorName,
    TensorRows,
    build_index,
    decode_place,
)
from paceline.checkpoint.format.verify_files import (
    MAX_STATE_BYTES,
    check_name,
    check_sizes,
    check_state,
    open_part,
    read_manifest,
    verify_open,
)
from paceline.checkpoint.format.verify_files import verify as verify_all
from paceline.checkpoint.load.shard_files import (
    AT_ONCE,
    HashedReads,
    OpenFiles,
    Readers,
    RemoteFiles,
    check_blocks,
    check_whole_files,
)
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import JsonObject
from paceline.protocols.shard import PARAM

KEPT_FREE = 512  # open files besides a checkpoint's: sockets, logs, data
MAX_SIDE_FILE_BYTES = 1024 * 1024 * 1024


def raise_open_files_limit(files: int) -> None:
    """Raise the soft limit of open files if it is too low for ``files`` and the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + KEPT_FREE
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        # The soft limit only: raising the hard one needs a privilege.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class CheckpointReader:
    """An open published checkpoint. Implements ``protocols.shard.ShardReader``; a context manager.

    With ``verify`` all hashes are compared first. With ``ranks`` it is opened by all of them together
    (collective): each hashes what it reads, and ``verify_reads`` must be called after the last read.
    ``manifest`` and ``state``: already read by another rank. ``elsewhere``: access to files that are not in
    ``path``.
    """

    def __init__(
        self,
        path: Path,
        *,
        verify: bool = True,
        ranks: CheckpointWorld | None = None,
        manifest: Manifest | None = None,
        state: JsonObject | None = None,
        elsewhere: RemoteFiles | None = None,
    ) -> None:
        self.path = path
        self.manifest: Manifest = read_manifest(path) if manifest is None else manifest
        if manifest is None:
            check_name(path, self.manifest)
            check_sizes(path, self.manifest)
            if verify and ranks is None:
                verify_all(path, self.manifest)
        # macOS allows 256 open files by default.
        raise_open_files_limit(AT_ONCE)
        shards = self.manifest.shards
        sizes = [self.manifest.files[name].bytes for name in shards]
        self._files = OpenFiles(path, shards, sizes, elsewhere)
        self._elsewhere = elsewhere
        self._hashing: HashedReads | None = None
        self._ranks = ranks
        try:
            if ranks is not None and self.manifest.tensors is None:
                check_whole_files(
                    ranks, path, self.manifest
                )  # one hash a file: no part can be verified alone
            elif ranks is not None:
                self._hashing = HashedReads(self._files, self.manifest)
                # A rank that raised alone would leave the others in their collectives: damage is agreed on
                # in ``verify_reads``.
                self._files.damage_is_found_later = True
            elif verify and self.manifest.tensors is not None:
                check_headers(self._files, self.manifest, range(len(shards)))
            self._data = [self.manifest.files[name].data for name in shards]
            index = self.manifest.tensors
            if index is None:
                index, self._data = index_of_headers(self._files)
            self._tensors: dict[TensorName, TensorRows] = self._named(index)
            self._kinds: dict[tuple[str, str], list[str]] = {}
            for of in self._tensors:
                self._kinds.setdefault((of.role, of.name), []).append(of.kind)
            self.state: JsonObject = self._state() if state is None else state
            check_state(path, self.manifest, self.state)
        except BaseException:
            self.close()
            raise

    def verify_reads(self) -> None:
        """Verify all blocks, read or not, over all ranks. Collective with ``ranks``.

        Raises the same CheckpointError on all ranks.
        """
        if self._hashing is None or self._ranks is None:
            return
        ranks, hashing = self._ranks, self._hashing
        readers = self._readers(ranks)
        check_blocks(ranks, hashing, self.manifest, self.path, readers)
        self._hashing = None  # what is read from here on has been verified
        self._files.damage_is_found_later = False
        hashing.end()
        mine = [number for number, of in enumerate(readers.owners) if of[number % len(of)] == ranks.rank]

        def headers() -> bool:
            check_headers(self._files, self.manifest, mine)
            return True

        on_all_ranks(ranks, headers, self.path, "the checkpoint cannot be read")

    def _readers(self, ranks: CheckpointWorld) -> Readers:
        shards, elsewhere = self.manifest.shards, self._elsewhere
        if elsewhere is None:
            return Readers.all(ranks.world_size, len(shards))
        return Readers(elsewhere.disk_of_ranks, [elsewhere.owners(name) for name in shards])

    @property
    def num_read(self) -> int:
        """Bytes of shards that this rank has read."""
        return self._files.num_read

    @property
    def step(self) -> int:
        """The number of finished optimizer steps."""
        return self.manifest.step

    def names(self) -> Iterator[TensorName]:
        """Iterate over all tensors, sorted."""
        return iter(sorted(self._tensors, key=lambda n: (n.role, n.name, n.kind)))

    def roles(self) -> tuple[str, ...]:
        return tuple(sorted({n.role for n in self._tensors}))

    def parameters(self, role: str) -> frozenset[str]:
        """Return the names of a role's parameters."""
        return frozenset(n.name for n in self._tensors if n.role == role and n.kind == PARAM)

    def has(self, role: str, name: str, kind: str) -> bool:
        return TensorName(role, kind, name) in self._tensors

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        """Return the kinds stored for a parameter: ``param`` and its optimizer states."""
        return tuple(sorted(self._kinds.get((role, name), ())))

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        """Return the shape of the full tensor."""
        return self._of(role, name, kind).shape

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype:
        return DTYPES[self._of(role, name, kind).dtype]

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
        tensor = self._of(role, name, kind)
        # By the index, without opening a file.
        blocks = tensor.overlapping(offsets, shape)
        for block in blocks:
            if block.offsets == offsets and block.sizes == shape:
                # Saved as it is requested, the usual case: no second copy.
                return self._rows(tensor, block, 0, shape[0] if shape else 1)
        # `covered` marks the elements found: several blocks, or a part of one, may leave gaps.
        result = torch.empty(shape, dtype=DTYPES[tensor.dtype])
        covered = torch.zeros(shape, dtype=torch.bool) if tensor.sizes is not None else None
        for block in blocks:
            # The overlap of the saved block with the requested one; read its rows, then copy the columns.
            low = [max(a, b) for a, b in zip(offsets, block.offsets, strict=True)]
            high = [
                min(a + n, b + m)
                for a, n, b, m in zip(offsets, shape, block.offsets, block.sizes, strict=True)
            ]
            if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
                continue
            # Rows are contiguous in the file, columns are cut in memory.
            rows = self._rows(tensor, block, low[0] - block.offsets[0], high[0] - low[0])
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
                    str(self.path), missing=missing, name=name, kind=kind, role=role
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
        return self._content(f"{HF_FOLDER}/{name}", MAX_SIDE_FILE_BYTES)

    def side_json(self, name: str) -> JsonObject:
        """Return a side file's JSON object. Raises KeyError and CheckpointError."""
        where = str(self.path / HF_FOLDER / name)
        return parse_object(self.side_file(name), where, max_bytes=MAX_CONFIG_BYTES)

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        if self._hashing is not None:
            self._hashing.end()
        self._files.close()

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _of(self, role: str, name: str, kind: str) -> TensorRows:
        rows = self._tensors.get(TensorName(role, kind, name))
        if rows is None:
            raise CheckpointError(
                codes.CHECKPOINT_NO_TENSOR(
                    str(self.path),
                    f"kinds stored for it: {', '.join(self.kinds(role, name)) or 'none'}",
                    kind=kind,
                    name=name,
                    role=role,
                )
            )
        return rows

    def _rows(self, tensor: TensorRows, block: BlockRow, first: int, count: int) -> Tensor:
        """Read rows of a block."""
        dtype, start = DTYPES[tensor.dtype], self._data[block.file] + block.start
        slot = ByteRange(dtype, block.sizes, start, start + prod(block.sizes) * dtype.itemsize)
        within = all(o + n <= of for o, n, of in zip(block.offsets, block.sizes, tensor.shape, strict=True))
        # The index comes from a file: it must not make us read or allocate beyond the shard.
        if slot.end > self._files.sizes[block.file] or not within:
            raise damaged(self.path, self._files.names[block.file], "a tensor lies outside of it")
        source = self._files if self._hashing is None else self._hashing
        return rows_by(lambda view, at: source.read_into(view, block.file, at), slot, first, count)

    def _named(self, index: Mapping[str, TensorRows]) -> dict[TensorName, TensorRows]:
        """Return the index by decoded names. Raises CheckpointError for a name or dtype that is not ours."""
        tensors = {}
        for encoded, rows in index.items():
            try:
                tensors[TensorName.decode(encoded)] = rows
            except ValueError as exc:
                raise damaged(self.path, MANIFEST, str(exc)[:300]) from None
            if rows.dtype not in DTYPES:
                raise damaged(self.path, MANIFEST, f"dtype {rows.dtype[:40]} of {encoded[:200]}")
        return tensors

    def _state(self) -> JsonObject:
        return parse_object(
            self._content(STATE, MAX_STATE_BYTES), str(self.path / STATE), max_bytes=MAX_STATE_BYTES
        )

    def _content(self, name: str, most: int) -> bytes:
        """Return the content of a side file after comparing its hash. Raises KeyError."""
        entry = self.manifest.files[name]
        with open_part(self.path, name) as file:
            verify_open(file, entry, self.path, name)
            return file.read(most)


Table = dict[str, tuple[str, tuple[int, ...], BlockRow]]  # encoded name → dtype, whole shape, where it lies


def index_of_headers(files: OpenFiles) -> tuple[dict[str, TensorRows], list[int]]:
    """Return the index from the headers, and the bytes of each header. Raises CheckpointError."""
    tables, data = [], []
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for number in range(len(files.names)):
        table, start = _table(files, number)
        for encoded, (dtype, shape, _) in table.items():
            if kinds.setdefault(encoded, (dtype, shape)) != (dtype, shape):
                raise damaged(
                    files.path,
                    files.names[number],
                    f"'{encoded}' has another shape or dtype than in another shard",
                )
        tables.append(table)
        data.append(start)
    return build_index(tables), data


def check_headers(files: OpenFiles, manifest: Manifest, numbers: Iterable[int]) -> None:
    """Check that the headers of some shards equal the index.

    Raises CheckpointError.
    """
    wanted = set(numbers)
    # The index and the headers say the same twice; a difference is damage or a mixed-up file.
    expected: dict[int, Table] = {number: {} for number in wanted}
    for encoded, tensor in (manifest.tensors or {}).items():
        rows = [i for i, number in enumerate(tensor.files().tolist()) if number in wanted]
        for row in tensor.rows(rows) if rows else ():
            expected[row.file][encoded] = (tensor.dtype, tensor.shape, row)
    for number, table in expected.items():
        name = files.names[number]
        header, data = _table(files, number)
        if data != manifest.files[name].data or header != table:
            differ = sorted(k for k in header.keys() | table.keys() if header.get(k) != table.get(k))
            raise damaged(
                files.path,
                name,
                f"its header differs from the manifest's index: {', '.join(differ)[:200] or 'its length'}",
            )


def _table(files: OpenFiles, number: int) -> tuple[Table, int]:
    """Return a shard's tensors by its header, and the header's length. Raises CheckpointError."""
    name = files.names[number]
    slots, metadata, data = read_header(files.file(number), files.path, name)
    files.num_read += data
    table: Table = {}
    for encoded, slot in slots.items():
        try:
            TensorName.decode(encoded)
            shape, offsets = decode_place(encoded, metadata, slot.shape)
        except (ValueError, RecursionError) as exc:
            raise damaged(files.path, name, str(exc)[:300]) from None
        table[encoded] = (
            DTYPE_WORDS[slot.dtype],
            shape,
            BlockRow(number, slot.start - data, offsets, slot.shape),
        )
    return table, data
