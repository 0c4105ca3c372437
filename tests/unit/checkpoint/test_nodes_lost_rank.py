"""A save on nodes without a shared disk of which a rank is lost, or an operation fails, at any moment.

What the disks then hold together is the new checkpoint or the former, whole; once rank 0 has renamed it, the
new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import FILES, ThreadRank, on_ranks, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.node_local import publish
from paceline.checkpoint.node_local.inventory import Survey, parts_in
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.core.rundir import RunDir

FIRST, AGAIN = 1, [1, 2]  # the step that is there, and those that are saved: in its place, or after it


class LostError(RuntimeError):
    """A collective that fails: another rank is gone."""


class Killed(BaseException):
    """As kill -9: no handler of ours runs."""


@dataclass
class Lossy:
    """A rank whose collective number ``lost`` fails, after the others had its answer."""

    of: ThreadRank
    lost: int = -1
    done: int = field(default=0)

    @property
    def rank(self) -> int:
        return self.of.rank

    @property
    def world_size(self) -> int:
        return self.of.world_size

    def all_gather_json(self, value: Any) -> list[Any]:
        answer = self.of.all_gather_json(value)
        self.done += 1
        if self.done == self.lost:
            raise LostError
        return answer


def save(root: Path, step: int, crash: Callable[[int, str], None], lost: tuple[int, int] = (-1, -1)) -> list:
    """One save on two nodes; ``lost``: the rank whose collective of this number fails."""

    def work(rank: ThreadRank) -> Any:
        world = Lossy(rank, lost[1] if rank.rank == lost[0] else -1)
        run = RunDir.at(root / str(rank.rank))
        try:
            saver = Checkpointer(run, world, 1, disks=Disks((0, 1)), crash=lambda p: crash(rank.rank, p))
            saver.save(step, sample_shards(step)[rank.rank : 2 : 2], {"step": step}, {**FILES})
        except (Killed, LostError):
            rank.meeting.abort()  # the others' collectives fail from here on
            return "lost"
        return world.done

    return on_ranks(2, work)


def whole(root: Path) -> list[tuple[int, int]]:
    survey = Survey({node: parts_in(RunDir.at(root / str(node)).checkpoints) for node in (0, 1)})
    return [(one.step, one.sequence) for one in survey.whole]


def never(rank: int, point: str) -> None: ...


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    assert save(tmp_path / "begun", FIRST, never)[0] != "lost" and whole(tmp_path / "begun") == [(FIRST, 1)]
    return tmp_path / "begun"


def judged(root: Path, step: int, committed: bool, what: str) -> None:
    there = whole(root)
    assert there and (step, 2) >= there[-1] and ((step, 2) in there or not committed), (what, there)
    for again in (step, 3):  # as the run that resumes goes on
        assert all(isinstance(done, int) for done in save(root, again, never)), what
    for node in "01":
        left = sorted(path.name for path in RunDir.at(root / node).checkpoints.iterdir())
        assert left == ["latest", "step-00000003"], (what, left)


@pytest.mark.parametrize("step", AGAIN)
@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_dies_at_any_point(step: int, dying: int, begun: Path, tmp_path: Path) -> None:
    points: list[str] = []
    shutil.copytree(begun, tmp_path / "count")
    save(tmp_path / "count", step, lambda rank, point: points.append(point) if rank == dying else None)
    assert "renamed" in points and len(points) >= 10
    assert "pruned_aside" in points or step == FIRST
    for number, point in enumerate(points):
        root, seen = tmp_path / str(number), {0: list[str](), 1: list[str]()}
        shutil.copytree(begun, root)

        def crash(rank: int, at: str, seen: dict[int, list[str]] = seen, number: int = number) -> None:
            seen[rank].append(at)
            if rank == dying and len(seen[rank]) > number:
                raise Killed(at)

        assert save(root, step, crash)[dying] == "lost"
        judged(root, step, "renamed" in seen[0], f"rank {dying} dies at {point}")


@pytest.mark.parametrize("step", AGAIN)
@pytest.mark.parametrize("losing", [0, 1])
def test_a_collective_fails_on_one_rank(step: int, losing: int, begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path / "count")
    count = save(tmp_path / "count", step, never)[0]
    assert count >= 6
    for number in range(1, count + 1):
        root, seen = tmp_path / str(number), list[str]()
        shutil.copytree(begun, root)
        answers = save(
            root, step, lambda rank, p, seen=seen: seen.append(p) if rank == 0 else None, (losing, number)
        )
        assert answers[losing] == "lost"
        judged(root, step, "renamed" in seen, f"collective {number} of rank {losing}")


@pytest.mark.parametrize("step", AGAIN)
@pytest.mark.parametrize("point", ["renamed", "renamed_durably"])
def test_an_error_after_the_commit_takes_nothing_back(step: int, point: str, begun: Path) -> None:
    def crash(rank: int, at: str) -> None:
        if rank == 0 and at == point:
            raise OSError(5, "no")

    answers = save(begun, step, crash)
    assert {error.diagnostics[0].code for error in answers} == {"checkpoint.io"}
    assert (step, 2) in whole(begun)
    left = {path.name for path in begun.glob("*/checkpoints/*")}
    assert any(name.startswith(".replaced-") for name in left) == (step == FIRST), "the former one stays"
    judged(begun, step, True, point)


def test_one_that_does_not_tell_whether_it_is_read_stays(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(checkpoint: Path) -> bool:
        raise PermissionError(13, "no", str(checkpoint))

    monkeypatch.setattr(publish, "is_being_read", refuse)
    assert "lost" not in save(begun, 2, never)
    assert whole(begun) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("step", AGAIN)
def test_nothing_old_goes_before_the_new_one_is_whole(
    step: int, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[tuple[str, bool]] = []
    own = publish.discard

    def discard(path: Path) -> None:
        gone.append((path.name, (step, 2) in whole(begun)))
        own(path)

    monkeypatch.setattr(publish, "discard", discard)
    monkeypatch.setattr("paceline.checkpoint.save.staging.discard", discard)

    def crash(rank: int, point: str) -> None:
        if point == "pruned_aside":
            gone.append((point, (step, 2) in whole(begun)))

    assert "lost" not in save(begun, step, crash)
    assert len(gone) == (2 if step == FIRST else 4) and all(new for _, new in gone), gone
