"""A checkpoint that all ranks open together: every byte read about once, every verdict the same on all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from checkpoint_samples import FILES, ThreadRank, on_ranks

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format.block_hashes import BlockHash, BlockSizes, hash_of_block, read_block_hash
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.shard_files import HashedReads, OpenFiles
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.protocols.shard import Shard

GRAIN = BlockSizes(4096, 128)
ROWS, COLUMNS, TENSORS = 48, 32, 12
KINDS = ("param", "exp_avg", "exp_avg_sq")


def tensors() -> dict[tuple[str, str], torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    whole = {
        (f"layers.{i}.weight", kind): torch.randn(ROWS, COLUMNS, generator=made)
        for i in range(TENSORS)
        for kind in KINDS
    }
    return whole | {(f"layers.{i}.weight", "step"): torch.tensor(7.0) for i in range(TENSORS)}


def rows_of(rank: int, world_size: int) -> slice:
    return slice(ROWS * rank // world_size, ROWS * (rank + 1) // world_size)


def saved(run: RunDir, world_size: int, step: int = 1) -> Path:
    """A checkpoint as fsdp saves it: each rank its rows; numbers of whole tensors by the first rank."""

    def work(world: ThreadRank) -> Path:
        shards = []
        for (name, kind), whole in tensors().items():
            if whole.ndim:
                at = rows_of(world.rank, world_size)
                shards.append(
                    Shard("policy", name, kind, tuple(whole.shape), (at.start, 0), whole[at].clone())
                )
            elif world.rank == 0:
                shards.append(Shard("policy", name, kind, (), (), whole))
        state = {"train": {"step": step}}
        return Checkpointer(run, world, grain=GRAIN).save(step, shards, state, FILES)  # type: ignore[arg-type]

    return on_ranks(world_size, work)[0]


def resumed(path: Path, world_size: int) -> list[Any]:
    """What each rank gets of its rows, or its error."""

    def work(world: ThreadRank) -> dict[tuple[str, str], torch.Tensor]:
        found = {}
        with CheckpointReader(path, ranks=world) as reader:  # type: ignore[arg-type]
            for (name, kind), whole in tensors().items():
                at = rows_of(world.rank, world_size)
                found[name, kind] = (
                    reader.read_block(
                        "policy", name, kind, (at.start, 0), (at.stop - at.start, whole.shape[1])
                    )
                    if whole.ndim
                    else reader.read("policy", name, kind)
                )
            reader.verify_reads()
        return found

    return on_ranks(world_size, work)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes that this process asks of the file system through descriptors of shards."""
    total, pread, preadv = [0], os.pread, os.preadv

    def one(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        total[0] += len(data)
        return data

    def into(fd: int, views: list[memoryview], at: int) -> int:
        got = preadv(fd, views, at)
        total[0] += got
        return got

    monkeypatch.setattr(os, "pread", one)
    monkeypatch.setattr(os, "preadv", into)
    yield total


@pytest.mark.parametrize(
    ("before", "now", "most"),
    [(4, 4, 1.05), (1, 1, 1.05), (4, 3, 1.5), (3, 4, 1.5), (1, 4, 1.5), (4, 1, 1.5)],
)
def test_bytes_read_over_all_ranks(
    run: RunDir, counted: list[int], before: int, now: int, most: float
) -> None:
    path = saved(run, before)
    on_disk = sum(p.stat().st_size for p in path.glob("*.safetensors"))
    header = sum(8 + int.from_bytes(p.read_bytes()[:8], "little") for p in path.glob("*.safetensors"))
    counted[0] = 0
    answers = resumed(path, now)
    # headers are large in a checkpoint of so small tensors, and read a second time: not counted
    ratio = (counted[0] - header) / on_disk
    assert 1.0 <= ratio <= most, ratio
    for rank, answer in enumerate(answers):
        for key, whole in tensors().items():
            assert torch.equal(answer[key], whole[rows_of(rank, now)] if whole.ndim else whole), key


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("now", [1, 3, 4])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.99], ids=["header", "middle", "end"])
def test_a_flipped_byte_is_the_same_error_on_all_ranks(run: RunDir, now: int, part: float) -> None:
    path = saved(run, 4)
    shard = path / "shard-00002-of-00004.safetensors"
    flip(shard, 9 + int(part * (shard.stat().st_size - 10)))
    answers = resumed(path, now)
    assert all(isinstance(a, CheckpointError) for a in answers), answers
    assert len({str(a) for a in answers}) == 1
    (found,) = answers[0].diagnostics
    assert found.code == "checkpoint.damaged" and shard.name in found.what and "bytes " in found.found


def test_verdicts_come_in_rounds_where_there_are_many(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.checkpoint.load.shard_files.LEAVES_A_ROUND", 40)  # a block and a bit
    path = saved(run, 4)
    assert not any(isinstance(answer, Exception) for answer in resumed(path, 3))
    flip(path / "shard-00003-of-00004.safetensors", -3)
    answers = resumed(path, 3)
    assert len({str(a) for a in answers}) == 1 and "shard-00003" in str(answers[0])


def test_a_byte_that_nobody_wanted_is_verified_too(run: RunDir) -> None:
    path = saved(run, 2)
    flip(path / "shard-00001-of-00002.safetensors", -3)

    def work(world: ThreadRank) -> None:
        with CheckpointReader(path, ranks=world) as reader:  # type: ignore[arg-type]
            reader.verify_reads()

    assert all(isinstance(a, CheckpointError) for a in on_ranks(3, work))


def test_the_one_before_is_taken_and_the_steps_lost_are_said(run: RunDir) -> None:
    first, second = saved(run, 2, step=1), saved(run, 2, step=5)
    flip(second / "shard-00001-of-00002.safetensors", -3)
    assert find_checkpoint("latest", run, most_bytes=0) == second  # sizes tell nothing
    damage = resumed(second, 2)[0]
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", run, notes, most_bytes=0, known={second: damage}) == first
    assert "4 steps are trained again" in notes[0].hint and "shard-00001" in notes[0].what
    with pytest.raises(CheckpointError, match="shard-00001"):
        find_checkpoint(str(second), run, most_bytes=0, known={second: damage})


@pytest.mark.parametrize("seen", ["before", "while it is read"])
def test_two_shards_that_were_swapped_are_refused_by_name(run: RunDir, seen: str) -> None:
    saved(run, 2, step=1)
    path = saved(run, 2, step=2)
    first, second = sorted(path.glob("*.safetensors"))
    first.rename(path / "aside")
    second.rename(first)
    (path / "aside").rename(second)
    if seen == "before":
        notes: list[Diagnostic] = []
        assert find_checkpoint("latest", run, notes) == run.checkpoint(1)
        assert first.name in notes[0].what or second.name in notes[0].what
        return
    answers = resumed(path, 2)
    assert len({str(a) for a in answers}) == 1 and isinstance(answers[0], CheckpointError)
    assert ".safetensors" in str(answers[0])


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 100)
    files = OpenFiles(tmp_path, ["a"], [100])
    files.read_into(memoryview(bytearray(10)), 0, 0)
    files.close()
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(CheckpointError, match="replaced"):
        files.read_into(memoryview(bytearray(10)), 0, 0)
    files.close()


@pytest.mark.parametrize("leaf_hash", [hashlib.sha256, xxhash.xxh3_128])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 255, 256, 257, 1000])
def test_hashes_are_alike_however_the_bytes_come(tmp_path: Path, size: int, leaf_hash: Any) -> None:
    grain, data = BlockSizes(256, 64, leaf_hash().name.lower()), os.urandom(size)
    leaves = [leaf_hash(data[at : at + 64]).digest() for at in range(0, size, 64)]
    expected = tuple(hash_of_block(leaves[at : at + 4]) for at in range(0, len(leaves), 4))
    for pieces in (1, 7, 64, 100, size):
        found = BlockHash(grain)
        for at in range(0, size, pieces):
            found.update(memoryview(data)[at : at + pieces])
        assert found.hashes() == expected
    (tmp_path / "f").write_bytes(data)
    with open(tmp_path / "f", "rb") as file:
        assert tuple(read_block_hash(file, b, size, grain) for b in range(grain.blocks(size))) == expected


@pytest.mark.parametrize("seed", range(8))
def test_any_range_is_read_right_and_known_by_its_leaves(tmp_path: Path, seed: int) -> None:
    import random
    from types import SimpleNamespace

    draw, grain = random.Random(seed), BlockSizes(256, 64)
    size = draw.randrange(100, 2000)
    data = draw.randbytes(size)
    (tmp_path / "f").write_bytes(data)
    whole = BlockHash(grain)
    whole.update(memoryview(data))
    entry = SimpleNamespace(blocks=whole.hashes())
    manifest: Any = SimpleNamespace(grain=grain, files={"f": entry}, shards=("f",))
    reads = HashedReads(OpenFiles(tmp_path, ["f"], [size]), manifest)
    for _ in range(40):
        first = draw.randrange(size)
        last = draw.randrange(first, size) + 1
        view = bytearray(last - first)
        reads.read_into(memoryview(view), 0, first)
        assert bytes(view) == data[first:last]
    reads.hash_leaves(0, range(-(-size // 64)))
    for number, block in reads.places():
        assert reads.verdict(number, block, reads.known(number, block)) == ""
    reads.end()
    reads.files.close()


def test_replicas_read_a_tensor_on_one_rank(run: RunDir, counted: list[int]) -> None:
    """What all ranks hold alike, they take turns to read, and send."""
    from paceline.strategies.replicated_state import ReadOnce

    path = saved(run, 2)

    class Sending(ThreadRank):
        def send_tensor(self, tensor: torch.Tensor, src: int, group: object) -> torch.Tensor:
            return torch.tensor(self.all_gather_json(tensor.tolist())[src], dtype=tensor.dtype)

    def work(world: ThreadRank) -> bool:
        world.__class__ = Sending
        with CheckpointReader(path, ranks=world) as reader:  # type: ignore[arg-type]
            once = ReadOnce(reader, world)  # type: ignore[arg-type]
            alike = [torch.equal(once.read("policy", *key), whole) for key, whole in tensors().items()]
            reader.verify_reads()
        return all(alike)

    on_disk = sum(p.stat().st_size for p in path.glob("*.safetensors"))
    header = sum(8 + int.from_bytes(p.read_bytes()[:8], "little") for p in path.glob("*.safetensors"))
    counted[0] = 0
    assert on_ranks(3, work) == [True] * 3
    assert (counted[0] - header) / on_disk <= 1.1
