"""The places of all tensors' blocks: one index of all shards in the manifest, as runs of numbers. No torch.

Shards of one layout have regular columns (files 0, 1, 2 …, offsets 0, 64, 128 …). So an index stays small for
thousands of files, and Paceline checks it without expanding it. Tensors are named ``role|kind|plain name``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from paceline.core.json_types import Json, JsonObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_DIMS = 16
# Numbers above are not exact in JSON readers that use doubles.
_MOST = 1 << 53
Runs = tuple[int, ...]  # (first, step, count) of each run, one after another


@dataclass(frozen=True)
class BlockRow:
    """One block: the shard's number among the sorted shard names, its first byte after the shard's header,
    its place in the whole tensor, its shape.
    """

    file: int
    start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TensorRows:
    """A tensor's dtype (safetensors' name), whole shape, and the columns of its blocks as runs.

    Without ``offsets`` and ``sizes`` each block is the whole tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Runs
    start: Runs
    offsets: tuple[Runs, ...] | None
    sizes: tuple[Runs, ...] | None

    @staticmethod
    def of(dtype: str, shape: tuple[int, ...], rows: Iterable[BlockRow]) -> TensorRows:
        """Pack the rows."""
        # In the tensor's order, so that the columns are regular and pack into few runs.
        rows = sorted(rows, key=lambda row: (row.offsets[::-1], row.file))
        uncut = all(row.sizes == shape for row in rows)
        return TensorRows(
            dtype,
            shape,
            pack([row.file for row in rows]),
            pack([row.start for row in rows]),
            None if uncut else tuple(pack([row.offsets[d] for row in rows]) for d in range(len(shape))),
            None if uncut else tuple(pack([row.sizes[d] for row in rows]) for d in range(len(shape))),
        )

    def to_json(self) -> JsonObject:
        columns: JsonObject = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "file": list(self.file),
            "start": list(self.start),
        }
        if self.offsets is not None and self.sizes is not None:
            columns["offsets"] = [list(runs) for runs in self.offsets]
            columns["sizes"] = [list(runs) for runs in self.sizes]
        return columns

    def files(self) -> NDArray[np.int64]:
        """Return the shard number of each block."""
        return unpack(self.file)

    def rows(self, numbers: NDArray[np.int64] | list[int] | None = None) -> list[BlockRow]:
        """Return the blocks, or those of the given numbers."""
        import numpy as np

        selected = np.arange(len(self.files())) if numbers is None else numbers
        dims = range(len(self.shape))
        file, start = unpack(self.file)[selected].tolist(), unpack(self.start)[selected].tolist()
        if self.offsets is None or self.sizes is None:
            zero = (0,) * len(self.shape)
            return [BlockRow(f, s, zero, self.shape) for f, s in zip(file, start, strict=True)]
        offsets = [unpack(self.offsets[d])[selected].tolist() for d in dims]
        sizes = [unpack(self.sizes[d])[selected].tolist() for d in dims]
        return [
            BlockRow(file[i], start[i], tuple(o[i] for o in offsets), tuple(s[i] for s in sizes))
            for i in range(len(file))
        ]

    def overlapping(self, offsets: Sequence[int], shape: Sequence[int]) -> list[BlockRow]:
        """Return the blocks that share an element with the block of ``shape`` at ``offsets``."""
        import numpy as np

        if self.offsets is None or self.sizes is None:
            return self.rows()
        keep = np.ones(len(self.files()), dtype=bool)
        for d, (first, size) in enumerate(zip(offsets, shape, strict=True)):
            low, long = unpack(self.offsets[d]), unpack(self.sizes[d])
            # Two intervals overlap if each begins before the other ends.
            keep &= (low < first + size) & (low + long > first)
        return self.rows(np.flatnonzero(keep))


def pack(values: Sequence[int]) -> Runs:
    """Return runs (first, step, count) of ``values``."""
    runs: list[int] = []
    begin = 0
    while begin < len(values):
        first, step, count = values[begin], 0, 1
        if begin + 1 < len(values):
            step, count = values[begin + 1] - first, 2
            while begin + count < len(values) and values[begin + count] == first + step * count:
                count += 1
        if count == 2 and step and begin + 2 < len(values):  # a pair at a break: the second may begin a run
            step, count = 0, 1
        runs += (first, step if count > 1 else 0, count)
        begin += count
    return tuple(runs)


def unpack(runs: Runs) -> NDArray[np.int64]:
    """Return the numbers of ``runs``."""
    import numpy as np

    parts = [
        first + step * np.arange(count, dtype=np.int64)
        for first, step, count in zip(runs[::3], runs[1::3], runs[2::3], strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def parse_index(entries: Json, num_files: int) -> dict[str, TensorRows]:
    """Return encoded tensor name → its rows, from a manifest of ``num_files`` shards.

    Checks counts, files and places from their runs, without expanding them. Raises ValueError.
    """
    if not isinstance(entries, dict):
        raise ValueError("tensors is not an object")
    return {name: _tensor(name, entry, num_files) for name, entry in entries.items()}


def _tensor(name: str, entry: Json, num_files: int) -> TensorRows:
    def need(condition: bool, part: str) -> None:
        if not condition:
            raise ValueError(f"tensor {name[:100]!r}: {part}")

    need(isinstance(entry, dict), "it is not an object")
    assert isinstance(entry, dict)
    need(set(entry) in (_WHOLE, _CUT), f"keys {sorted(entry)[:8]}")
    dtype, shape = entry["dtype"], entry["shape"]
    need(isinstance(dtype, str) and dtype.isalnum(), "its dtype")
    need(isinstance(shape, list) and _is_numbers(shape) and len(shape) <= MAX_DIMS, "its shape")
    need(all(0 <= n < _MOST for n in shape), "its shape")  # type: ignore[arg-type,union-attr]
    columns = {key: _runs(entry[key]) for key in ("file", "start")}
    lists: dict[str, list[Runs | None]] = {}
    for key in ("offsets", "sizes") if "offsets" in entry else ():
        column = entry[key]
        need(isinstance(column, list) and len(column) == len(shape), f"its {key}")  # type: ignore[arg-type]
        lists[key] = [_runs(numbers) for numbers in column]  # type: ignore[union-attr]
    every = [*columns.values(), *(runs for some in lists.values() for runs in some)]
    need(all(runs is not None for runs in every), "a column is not (first, step, count) of non-negative runs")
    # Without expanding: a hostile count of 2^53 must not allocate anything.
    counts = {sum(runs[2::3]) for runs in every if runs is not None}
    need(len(counts) == 1, "its columns have different lengths")
    need(1 <= min(counts) <= num_files, f"{min(counts)} blocks in {num_files} files")
    need(_top(columns["file"]) < num_files, f"a file number of {_top(columns['file'])} among {num_files}")
    for d, runs in enumerate(lists.get("sizes", ())):
        end = max(_top(runs), _top(lists["offsets"][d]))
        need(end <= shape[d], "a block outside the tensor")  # type: ignore[index]
    return TensorRows(
        str(dtype),
        tuple(shape),  # type: ignore[arg-type]
        columns["file"] or (),
        columns["start"] or (),
        tuple(r or () for r in lists["offsets"]) if lists else None,
        tuple(r or () for r in lists["sizes"]) if lists else None,
    )


_WHOLE = {"dtype", "shape", "file", "start"}
_CUT = _WHOLE | {"offsets", "sizes"}


def _is_numbers(value: Json) -> bool:
    return isinstance(value, list) and all(type(n) is int for n in value)


def _runs(value: Json) -> Runs | None:
    """Return checked runs; None if any number of them would be negative or too large."""
    if not isinstance(value, list) or not value or len(value) % 3 or not _is_numbers(value):
        return None
    runs: Runs = tuple(n for n in value if isinstance(n, int))
    for first, step, count in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        if not (0 < count < _MOST and 0 <= first < _MOST and 0 <= first + step * (count - 1) < _MOST):
            return None
    return runs


def _top(runs: Runs | None) -> int:
    """Return the largest number of checked runs."""
    assert runs is not None
    return max(
        max(first, first + step * (count - 1))
        for first, step, count in zip(runs[::3], runs[1::3], runs[2::3], strict=True)
    )


def build_index(
    tables: Iterable[Mapping[str, tuple[str, tuple[int, ...], BlockRow]]],
) -> dict[str, TensorRows]:
    """Return the index of all shards from each one's tensors: encoded name → (dtype, whole shape, row).

    Raises ValueError if two shards disagree on a tensor.
    """
    rows: dict[str, list[BlockRow]] = {}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for table in tables:
        for name, (dtype, shape, row) in table.items():
            if kinds.setdefault(name, (dtype, shape)) != (dtype, shape):
                raise ValueError(f"{name} has another shape or dtype than in another shard")
            rows.setdefault(name, []).append(row)
    return {name: TensorRows.of(*kinds[name], some) for name, some in sorted(rows.items())}


_SAFE = "._-+ /:@[](),="  # everything else is percent-encoded, '|' and '%' included


@dataclass(frozen=True)
class TensorName:
    """The key of a tensor: ``kind`` is ``param``, ``buffer`` or the name of an optimizer state."""

    role: str
    kind: str
    name: str

    def encode(self) -> str:
        return "|".join(quote(part, safe=_SAFE) for part in (self.role, self.kind, self.name))

    @staticmethod
    def decode(text: str) -> TensorName:
        """Parse an encoded name. Raises ValueError for a text that ``encode`` does not produce."""
        parts = text.split("|")
        if len(parts) != 3:
            raise ValueError(f"{text!r} does not have the form role|kind|name")
        name = TensorName(*(unquote(part, errors="strict") for part in parts))
        # One spelling a name: two encodings of one tensor would hide a duplicate.
        if name.encode() != text:
            raise ValueError(f"{text!r} is not encoded as written")
        return name


def decode_place(
    encoded: str, metadata: Mapping[str, str], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (global shape, offsets) of a block of ``shape``; without metadata it is the full tensor.

    Raises ValueError if the block does not fit.
    """
    text = metadata.get(encoded)
    if text is None:
        return shape, (0,) * len(shape)
    data = json.loads(text)
    if not isinstance(data, dict) or set(data) != {"global_shape", "offsets"}:
        raise ValueError(f"the entry of {encoded!r} is {text[:200]!r}")
    # Validate: shapes of the block's rank, and a block inside the tensor.
    full_shape, offsets = data["global_shape"], data["offsets"]
    for numbers in (full_shape, offsets):
        if (
            not isinstance(numbers, list)
            or len(numbers) != len(shape)
            or not all(type(n) is int and 0 <= n < 1 << 53 for n in numbers)
        ):
            raise ValueError(f"the entry of {encoded!r} is {text[:200]!r}")
    if any(o + s > w for o, s, w in zip(offsets, shape, full_shape, strict=True)):
        raise ValueError(
            f"the block {encoded!r} at {offsets} of shape {list(shape)} exceeds the tensor of shape"
            f" {full_shape}"
        )
    return tuple(full_shape), tuple(offsets)
