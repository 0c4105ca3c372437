"""The shards' own headers against the manifest's index; without one (version 1) they are the index."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.safetensors_file import DTYPE_WORDS, read_header
from paceline.checkpoint.format.tensor_index import BlockRow, TensorRows, build_index
from paceline.checkpoint.format.tensor_names import TensorName, decode_place
from paceline.checkpoint.load.open_files import OpenFiles

Table = dict[str, tuple[str, tuple[int, ...], BlockRow]]  # encoded name → dtype, whole shape, where it lies


def index_of_headers(files: OpenFiles) -> tuple[dict[str, TensorRows], list[int]]:
    """Return the index that the headers give, and the bytes of each header. Raises CheckpointError."""
    tables, data = [], []
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for number in range(len(files.names)):
        table, start = _table(files, number)
        for encoded, (dtype, whole, _) in table.items():
            if kinds.setdefault(encoded, (dtype, whole)) != (dtype, whole):
                what = f"'{encoded}' has another shape or dtype than in another shard"
                raise damaged(files.path, files.names[number], what)
        tables.append(table)
        data.append(start)
    return build_index(tables), data


def check_headers(files: OpenFiles, manifest: Manifest, numbers: Iterable[int]) -> None:
    """Compare the headers of some shards with the index: whoever reads a shard alone reads the same.

    Raises CheckpointError.
    """
    wanted = set(numbers)
    expected: dict[int, Table] = {number: {} for number in wanted}
    for encoded, tensor in (manifest.tensors or {}).items():
        at = [i for i, number in enumerate(tensor.files().tolist()) if number in wanted]
        for row in tensor.rows(at) if at else ():
            expected[row.file][encoded] = (tensor.dtype, tensor.shape, row)
    for number, table in expected.items():
        name = files.names[number]
        found, data = _table(files, number)
        if data != manifest.files[name].data or found != table:
            differ = sorted(k for k in found.keys() | table.keys() if found.get(k) != table.get(k))
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
            whole, offsets = decode_place(encoded, metadata, slot.shape)
        except (ValueError, RecursionError) as exc:
            raise damaged(files.path, name, str(exc)[:300]) from None
        table[encoded] = (
            DTYPE_WORDS[slot.dtype],
            whole,
            BlockRow(number, slot.start - data, offsets, slot.shape),
        )
    return table, data
