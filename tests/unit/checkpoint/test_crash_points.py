"""A kill at every point of a save: resume always finds the newest complete checkpoint, and the next save
works.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_samples import FILES, OneRank, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir


class Killed(BaseException):
    """As kill -9: no handler of ours runs (they catch Exception)."""


def points(run: RunDir, steps: tuple[int, ...], keep: int) -> list[str]:
    seen: list[str] = []
    for step in steps:
        seen.clear()
        Checkpointer(run, OneRank(), keep, crash=seen.append).save(
            step, sample_shards(step), {"step": step}, FILES
        )
    return list(seen)


def kill_at(number: int) -> Callable[[str], None]:
    left = [number]

    def crash(point: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed(point)

    return crash


def check(run: RunDir, allowed: set[int]) -> int:
    found = find_checkpoint("latest", run)
    assert found is not None
    with CheckpointReader(found) as reader:
        assert reader.step in allowed and reader.state["step"] == reader.step
        for shard in sample_shards(reader.step):
            assert torch.equal(reader.read(shard.role, shard.name, shard.kind), shard.tensor)
        return reader.step


def test_kill_at_every_point_of_a_save(tmp_path: Path) -> None:
    names = points(RunDir.at(tmp_path / "count"), (1, 2), keep=1)
    assert len(names) >= 12 and "renamed" in names and "pruned_aside" in names
    published = names.index("renamed")
    for number in range(len(names)):
        run = RunDir.at(tmp_path / f"kill-{number}")
        Checkpointer(run, OneRank(), 1).save(1, sample_shards(1), {"step": 1}, FILES)
        with pytest.raises(Killed):
            Checkpointer(run, OneRank(), 1, crash=kill_at(number)).save(
                2, sample_shards(2), {"step": 2}, FILES
            )
        assert check(run, {1, 2}) == (2 if number >= published else 1), names[number]
        Checkpointer(run, OneRank(), 1).save(3, sample_shards(3), {"step": 3}, FILES)
        assert check(run, {3}) == 3
        assert sorted(p.name for p in run.checkpoints.iterdir()) == ["latest", "step-00000003"], names[number]


def test_kill_at_every_point_of_the_first_save(tmp_path: Path) -> None:
    names = points(RunDir.at(tmp_path / "count"), (1,), keep=1)
    published = names.index("renamed")
    for number in range(len(names)):
        run = RunDir.at(tmp_path / f"kill-{number}")
        with pytest.raises(Killed):
            Checkpointer(run, OneRank(), 1, crash=kill_at(number)).save(
                1, sample_shards(1), {"step": 1}, FILES
            )
        notes: list = []
        found = find_checkpoint("auto", run, notes)
        if number >= published:
            assert found == run.checkpoint(1)
        else:
            assert found is None and [n.code for n in notes] == ["resume.fresh_start"], names[number]


def test_kill_at_every_point_of_saving_a_step_again(tmp_path: Path) -> None:
    """The only checkpoint is being replaced: there is never a moment without a complete one."""
    names = points(RunDir.at(tmp_path / "count"), (1, 1), keep=1)
    assert "old_aside" in names
    for number in range(len(names)):
        run = RunDir.at(tmp_path / f"kill-{number}")
        Checkpointer(run, OneRank(), 1).save(1, sample_shards(1), {"step": 1}, FILES)
        with pytest.raises(Killed):
            Checkpointer(run, OneRank(), 1, crash=kill_at(number)).save(
                1, sample_shards(1), {"step": 1, "again": True}, FILES
            )
        assert check(run, {1}) == 1
        Checkpointer(run, OneRank(), 1).save(2, sample_shards(2), {"step": 2}, FILES)
        assert check(run, {2}) == 2
        assert [p.name for p in run.checkpoints.glob("*step-*")] == ["step-00000002"], names[number]
