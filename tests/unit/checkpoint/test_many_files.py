"""A checkpoint of thousands of ranks: few files open at a time; a rank hardly feels how many there are."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.checkpoint.format.block_hashes import BlockHash, BlockSizes
from paceline.checkpoint.format.manifest import FileEntry, Manifest
from paceline.checkpoint.format.tensor_index import (
    BlockRow,
    TensorRows,
    build_index,
    pack,
    parse_index,
    unpack,
)
from paceline.checkpoint.load import reader as reading
from paceline.checkpoint.load.reader import CheckpointReader

NAMES = tuple(f"layers.{i}.weight" for i in range(20))
COLUMNS = 16


def made(folder: Path, ranks: int) -> Manifest:
    """Shards of ``ranks`` ranks: one row each of twenty matrices."""
    folder.mkdir()
    files, tables = {}, []
    for rank in range(ranks):
        header, table, body = {}, {}, b""
        for i, name in enumerate(NAMES):
            key, row = f"policy|param|{name}", torch.full((1, COLUMNS), float(rank * 100 + i))
            place = {"dtype": "F32", "shape": [1, COLUMNS], "data_offsets": [len(body), len(body) + 64]}
            header[key] = place
            table[key] = ("F32", (ranks, COLUMNS), BlockRow(rank, len(body), (rank, 0), (1, COLUMNS)))
            body += row.numpy().tobytes()
        offsets = json.dumps({"global_shape": [ranks, COLUMNS], "offsets": [rank, 0]}, separators=(",", ":"))
        text = json.dumps({"__metadata__": dict.fromkeys(header, offsets), **header}).encode()
        data = len(text).to_bytes(8, "little") + text + body
        blocks = BlockHash(BlockSizes())
        blocks.update(memoryview(data))
        name = f"shard-{rank:05d}-of-{ranks:05d}.safetensors"
        (folder / name).write_bytes(data)
        files[name] = FileEntry(len(data), data=8 + len(text), blocks=blocks.hashes())
        tables.append(table)
    state = b"{}"
    (folder / "state.json").write_bytes(state)
    files["state.json"] = FileEntry(2, hashlib.sha256(state).hexdigest())
    manifest = Manifest(1, 1, ranks, 0.0, files, tensors=build_index(tables))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest


class OneOfMany:
    """Rank 3 of a world whose other ranks have each read their own file and found it sound."""

    rank = 3

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def all_gather_json(self, mine: Any) -> list[Any]:
        seen = mine["ok"] if isinstance(mine["ok"], dict) and "good" in mine["ok"] else None
        others = [
            {"ok": {"good": [rank], "wrong": {}, "parts": {}} if seen else type(mine["ok"])()}
            for rank in range(self.world_size)
        ]
        others[self.rank] = mine
        return json.loads(json.dumps(others))


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # as where the hard limit is as low
    monkeypatch.setattr(reading, "raise_open_files_limit", lambda files: None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resume(folder: Path, ranks: int) -> tuple[float, int]:
    """CPU seconds, and bytes of shards read, of rank 3's resume on the same layout."""
    manifest = Manifest.from_bytes((folder / "manifest.json").read_bytes(), "m")
    text, begun = manifest.to_bytes(), time.process_time()
    world: Any = OneOfMany(ranks)
    with CheckpointReader(folder, ranks=world, manifest=Manifest.from_bytes(text, "m"), state={}) as reader:
        for i, name in enumerate(NAMES):
            row = reader.read_block("policy", name, "param", (3, 0), (1, COLUMNS))
            assert torch.equal(row, torch.full((1, COLUMNS), 300.0 + i))
        reader.verify_reads()
        return time.process_time() - begun, reader.num_read


def test_1100_files_with_256_that_may_be_open(tmp_path: Path, few_files: None) -> None:
    manifest = made(tmp_path / "c", 1100)
    assert len(os.listdir("/proc/self/fd")) < 200
    with CheckpointReader(tmp_path / "c") as reader:  # alone: every file is opened, hashed and compared
        whole = reader.read("policy", NAMES[5], "param")
        assert torch.equal(whole[:, 0], torch.arange(1100) * 100.0 + 5)
    _, num_read = resume(tmp_path / "c", 1100)
    entry = manifest.files["shard-00003-of-01100.safetensors"]
    assert num_read == entry.bytes + entry.data  # its own file, and that one's header


def test_an_index_of_regular_shards_does_not_grow_with_them(tmp_path: Path) -> None:
    sizes = [
        len(json.dumps({n: t.to_json() for n, t in (made(tmp_path / str(n), n).tensors or {}).items()}))
        for n in (8, 64)
    ]
    assert sizes[1] < sizes[0] * 1.1


@pytest.mark.slow
def test_16384_files_with_256_that_may_be_open(tmp_path: Path, few_files: None) -> None:
    """1,024 files of 2,160 tensors cost 65 CPU seconds a rank when each rank read all headers."""
    spent = {}
    for ranks in (1100, 16384):
        made(tmp_path / str(ranks), ranks)
        spent[ranks], num_read = resume(tmp_path / str(ranks), ranks)
        assert num_read < 20_000
    print(spent)
    assert spent[16384] < 5


@pytest.mark.parametrize(
    "values",
    [
        [0],
        [5, 5, 5],
        [0, 1, 2, 3],
        [0, 64, 128, 150],
        [3, 1, 4, 1, 5, 9, 2, 6],
        [7, 7, 8, 9, 10, 4, 2, 0],
        [1, 9],
    ],
)
def test_runs_give_the_numbers_back(values: list[int]) -> None:
    assert unpack(pack(values)).tolist() == values


def test_an_index_gives_back_every_row_and_only_what_overlaps() -> None:
    rows = [BlockRow(f, 8 * f, (2 * (f // 2), 3 * (f % 2)), (2, 3)) for f in range(6)]
    packed = TensorRows.of("F32", (6, 6), rows)
    back = parse_index(json.loads(json.dumps({"x": packed.to_json()})), 6)["x"]
    assert back == packed and sorted(back.rows(), key=lambda r: r.file) == rows
    assert {r.file for r in back.overlapping((1, 0), (2, 2))} == {0, 2}
    assert {r.file for r in back.overlapping((0, 0), (6, 6))} == set(range(6))
    assert back.overlapping((4, 5), (1, 1)) == [rows[5]]


ENTRY: dict[str, Any] = {
    "dtype": "F32",
    "shape": [4, 2],
    "file": [0, 1, 2],
    "start": [0, 0, 2],
    "offsets": [[0, 2, 2], [0, 0, 2]],
    "sizes": [[2, 0, 2], [2, 0, 2]],
}
WRONG: dict[str, dict[str, Any]] = {
    "giant_count": {"file": [0, 1, 1 << 52], "start": [0, 0, 1 << 52]},
    "giant_count_of_one_column": {"start": [0, 0, 1 << 40]},
    "more_blocks_than_files": {
        "file": [0, 0, 3],
        "start": [0, 0, 3],
        "offsets": [[0, 0, 3], [0, 0, 3]],
        "sizes": [[1, 0, 3], [1, 0, 3]],
    },
    "file_that_is_not_there": {"file": [1, 1, 2]},
    "negative_file": {"file": [1, -2, 2]},
    "negative_start": {"start": [-8, 0, 2]},
    "huge_start": {"start": [1 << 53, 0, 2]},
    "block_outside": {"sizes": [[9, 0, 2], [2, 0, 2]]},
    "offset_outside": {"offsets": [[0, 5, 2], [0, 0, 2]]},
    "shape_of_text": {"shape": ["4", 2]},
    "negative_shape": {"shape": [-4, 2]},
    "many_dims": {"shape": [1] * 40},
    "bool": {"file": [False, True, 2]},
    "half_a_run": {"file": [0, 1]},
    "no_run": {"file": []},
    "zero_count": {"file": [0, 1, 0]},
    "dtype": {"dtype": ["F32"]},
    "dtype_with_a_path": {"dtype": "../x"},
    "extra": {"code": 1},
    "no_sizes": {"sizes": None},
    "text": {"offsets": "0"},
}


def test_the_index_that_the_wrong_ones_differ_from_is_sound() -> None:
    assert [r.offsets for r in parse_index({"a": ENTRY}, 2)["a"].rows()] == [(0, 0), (2, 0)]


@pytest.mark.parametrize("kind", WRONG)
def test_a_lying_index_is_refused_without_being_spread_out(kind: str) -> None:
    with pytest.raises(ValueError, match="tensor 'a'"):
        parse_index({"a": {**ENTRY, **WRONG[kind]}}, 2)
