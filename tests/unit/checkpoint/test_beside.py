"""Saves beside training: the bytes of a synchronous save, of the moment at which it was started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import FILES, OneRank, on_ranks, sample_shards, whole
from test_crash_points import Killed, check, kill_at, points

from paceline.checkpoint.checkpointer import AsyncCheckpointer, Checkpointer, SnapshotMemory
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.protocols.shard import Shard

CPU = torch.device("cpu")


def beside(run: RunDir, world: Any = None, keep: int | None = None, **kwargs: Any) -> AsyncCheckpointer:
    world = world or OneRank()
    return AsyncCheckpointer(Checkpointer(run, world, keep, **kwargs), world, CPU)


def odd_shards() -> list[Shard]:
    """Every dtype's alignment, an empty tensor, a scalar, one that is not contiguous, a block."""
    strange = [
        whole("flag", torch.tensor([True, False, True])),
        whole("half", torch.arange(3, dtype=torch.bfloat16)),
        whole("long", torch.tensor(-(2**62))),
        whole("empty", torch.empty(0, 3)),
        whole("turned", torch.arange(6.0).reshape(2, 3).t()),
        whole("bits", torch.tensor([float("nan"), -0.0, 1e-45])),
    ]
    return [
        *strange,
        Shard("policy", "block", "param", (6, 2), (3, 0), torch.ones(3, 2, dtype=torch.float64)),
    ]


def files_of(checkpoint: Path) -> dict[str, bytes]:
    found = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in found}


def test_the_bytes_are_those_of_a_synchronous_save(tmp_path: Path) -> None:
    shards, state = [*sample_shards(3), *odd_shards()], {"train": {"step": 3}}
    one, other = RunDir.at(tmp_path / "one"), RunDir.at(tmp_path / "other")
    there = Checkpointer(one, OneRank()).save(3, shards, state, FILES)
    saves = beside(other)
    saves.start(3, shards, state, FILES)
    ended = saves.end()
    assert ended is not None and (ended.step, ended.path) == (3, other.checkpoint(3))
    assert files_of(ended.path) == files_of(there)
    with CheckpointReader(there) as mine, CheckpointReader(ended.path) as its:
        assert mine.manifest.files == its.manifest.files and mine.manifest.tensors == its.manifest.tensors
    assert ended.cost.num_bytes == sum(map(len, files_of(there).values()))


def test_what_training_changes_after_the_start_is_not_saved(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, state = torch.ones(1000), {"train": {"step": 1}}
    at_work = threading.Event()
    saves = beside(run, crash=lambda point: None if at_work.wait(20) else None)
    saves.start(1, [whole("w", weight)], state, FILES)
    assert saves.is_running and saves.is_working and saves.end(0) is None
    weight.zero_()
    state["train"]["step"] = 99
    at_work.set()
    assert saves.end() is not None and not saves.is_running and saves.end() is None
    with CheckpointReader(run.checkpoint(1)) as reader:
        assert torch.equal(reader.read("policy", "w", "param"), torch.ones(1000))
        assert reader.state == {"train": {"step": 1}}


def test_the_memory_of_a_snapshot_is_used_again(run: RunDir) -> None:
    from paceline.checkpoint.save.staging import contents_of

    memory = SnapshotMemory(CPU)

    def place(count: int) -> tuple[int, int]:
        copy = memory.copy(contents_of(0, [whole("w", torch.ones(count))], {}, {}))
        return copy.entries[0].load().data_ptr(), memory.num_bytes

    first = place(5000)
    assert place(5000) == first and place(10) == first, "a later snapshot touched new pages"
    assert place(6000)[1] == 24_000, "a larger one has room"


@pytest.mark.parametrize("where", ["export", "write"])
def test_an_error_on_one_rank_is_named_on_all_and_the_next_save_works(run: RunDir, where: str) -> None:
    def work(world: Any) -> tuple[BaseException | None, bool]:
        failing = world.rank == 1

        def crash(point: str) -> None:
            if failing and where == "write" and point == "file_created":
                raise OSError(28, "No space left on device")

        def shards() -> Any:
            yield whole(f"w{world.rank}", torch.ones(3))
            if failing and where == "export":
                raise OSError(28, "No space left on device")

        saves, error = beside(run, world, crash=crash), None
        try:
            saves.start(1, shards(), {}, {})
            saves.end()
        except CheckpointError as exc:
            error = exc
        failing = False
        saves.start(2, [whole(f"w{world.rank}", torch.ones(3))], {}, {})
        return error, saves.end() is not None

    answers = on_ranks(3, work)
    for error, again in answers:
        assert isinstance(error, CheckpointError) and again
        assert error.diagnostics[0].code == "checkpoint.disk_full"
        assert error.diagnostics[0].evidence["rank"] == 1
    assert find_checkpoint("latest", run) == run.checkpoint(2)
    assert [p.name for p in run.checkpoints.glob("*step-*")] == ["step-00000002"]


def test_without_memory_for_a_snapshot_the_save_is_synchronous_and_says_so(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(num_bytes: int, *, pinned: bool) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr("paceline.checkpoint.checkpointer.allocate_host", none_left)
    weight, saves = torch.ones(8), beside(run)
    saves.start(1, [whole("w", weight)], {}, {})
    assert not saves.is_working, "it had ended when the loop went on"
    weight.zero_()
    assert saves.end() is not None
    (note,) = saves.take_notes()
    assert note.code == "checkpoint.no_snapshot" and saves.take_notes() == []
    with CheckpointReader(run.checkpoint(1)) as reader:
        assert torch.equal(reader.read("policy", "w", "param"), torch.ones(8))


def test_a_kill_at_every_point_of_a_save_beside_training(tmp_path: Path) -> None:
    names = points(RunDir.at(tmp_path / "count"), (1, 2), keep=1)
    published = names.index("renamed")
    for number in range(len(names)):
        run = RunDir.at(tmp_path / f"kill-{number}")
        Checkpointer(run, OneRank(), 1).save(1, sample_shards(1), {"step": 1}, FILES)
        killed = beside(run, keep=1, crash=kill_at(number))
        killed.start(2, sample_shards(2), {"step": 2}, FILES)
        with pytest.raises(Killed):
            killed.end()
        assert check(run, {1, 2}) == (2 if number >= published else 1), names[number]
        saves = beside(run, keep=1)
        saves.start(3, sample_shards(3), {"step": 3}, FILES)
        assert saves.end() is not None and check(run, {3}) == 3
        assert sorted(p.name for p in run.checkpoints.iterdir()) == ["latest", "step-00000003"], names[number]


def test_one_scan_a_save(run: RunDir, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.checkpoint.format import verify_files

    for step in (1, 2, 3):
        save(step)
    seen: list[str] = []
    real = verify_files.examine_folder

    def look(path: Path, name: str) -> verify_files.CheckpointFolder:
        seen.append(name)
        return replace(real(path, name))

    monkeypatch.setattr(verify_files, "examine_folder", look)
    save(4, keep=2)
    assert seen == ["step-00000001", "step-00000002", "step-00000003"]
    assert sorted(p.name for p in run.checkpoints.glob("step-*")) == ["step-00000003", "step-00000004"]
