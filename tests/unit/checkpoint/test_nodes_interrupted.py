"""A save that was killed before its commit leaves parts on some nodes: the next start removes those alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_samples import FILES, ThreadRank, on_ranks, sample_shards
from test_nodes import SMALL, Nodes, names

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.node_local.inventory import Survey, begun_in, parts_in
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.save.retention import being_read


class Killed(BaseException):
    """As kill -9: no handler of ours runs."""


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def killed(nodes: Nodes, step: int, count: int = 2, at: str = "renamed_durably") -> None:
    """Save ``step`` until the last rank dies: it has renamed its part, and rank 0 has not."""

    def work(rank: ThreadRank) -> None:
        def crash(name: str) -> None:
            if rank.rank == count - 1 and name == at:
                raise Killed

        saver = Checkpointer(
            nodes.run(rank.rank), rank, disks=Disks(tuple(range(count))), crash=crash, grain=SMALL
        )
        try:
            saver.save(step, sample_shards(step)[rank.rank :: count], {"train": {"step": step}}, FILES)
        except Killed:
            rank.meeting.abort()

    on_ranks(count, work)
    assert not nodes.run(0).checkpoint(step).exists() and nodes.run(count - 1).checkpoint(step).exists()


def steps(nodes: Nodes, count: int = 2) -> list[list[str]]:
    return [[n for n in names(nodes.run(i).checkpoints) if n.startswith("step-")] for i in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_the_next_start_removes_what_a_kill_left(nodes: Nodes, count: int) -> None:
    nodes.save([1], count)
    killed(nodes, 2, count)
    back = nodes.resume(list(range(count)))
    assert [one.step for one in back] == [1] * count
    (said,) = [what for what in back[0].notes if "step-00000002" in what]
    assert "interrupted before all nodes had it; what it left was removed" in said
    assert steps(nodes, count) == [["step-00000001"]] * count
    nodes.save([2], count)
    assert [one.step for one in nodes.resume(list(range(count)))] == [2] * count


def test_a_run_killed_in_its_first_save_begins_anew(nodes: Nodes) -> None:
    """As on one disk, where that save has left a staging folder only."""
    killed(nodes, 1)
    assert [back.step for back in nodes.resume([0, 1], "auto")] == [None, None]
    assert steps(nodes) == [[], []]


def test_the_former_of_the_same_step_stays(nodes: Nodes) -> None:
    nodes.save([1])
    before = (nodes.run(0).checkpoint(1) / "manifest.json").read_bytes()

    def again(rank: ThreadRank) -> None:
        def crash(name: str) -> None:
            if rank.rank == 1 and name == "renamed_durably":
                raise Killed

        saver = Checkpointer(nodes.run(rank.rank), rank, disks=Disks((0, 1)), crash=crash, grain=SMALL)
        try:
            saver.save(1, sample_shards(9), {"train": {"step": 1}}, FILES)
        except Killed:
            rank.meeting.abort()

    on_ranks(2, again)
    assert [back.step for back in nodes.resume([0, 1])] == [1, 1]
    assert steps(nodes) == [["step-00000001"], []], "node 1 has the former aside, and its new half is gone"
    survey = Survey({node: parts_in(nodes.run(node).checkpoints) for node in (0, 1)})
    assert [one.name for one in survey.whole] == ["step-00000001"] and not survey.lacking
    assert (nodes.run(0).checkpoint(1) / "manifest.json").read_bytes() == before


def test_one_that_is_being_read_stays(nodes: Nodes) -> None:
    nodes.save([1])
    killed(nodes, 2)
    with being_read(nodes.run(1).checkpoint(2)):
        assert [back.step for back in nodes.resume([0, 1])] == [1, 1]
    assert steps(nodes)[1] == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("left", ["nothing", "another", "brought", "a part"])
def test_a_committed_one_that_lacks_a_node_stays(nodes: Nodes, left: str) -> None:
    """Whatever stands aside: only what shows that this very save was not committed counts."""
    nodes.save([1, 2], 3)
    former = nodes.run(2).checkpoint(2)  # its node does not come back
    at = nodes.run(0).checkpoints
    if left == "another":
        shutil.copytree(nodes.run(2).checkpoint(1), at / ".staging-step-00000002-abcd")
    elif left == "brought":
        shutil.copytree(former, at / ".fetching-step-00000002-abcd")
    elif left == "a part":
        shutil.copytree(former, at / ".staging-step-00000002-abcd")
        next((at / ".staging-step-00000002-abcd").glob("shard-*")).unlink()
    nodes.file(2, 1, 2, 3).rename(nodes.file(0, 1, 2, 3))
    assert [back.step for back in nodes.resume([0, 1])] == [1, 1]
    assert steps(nodes) == [["step-00000001", "step-00000002"]] * 2
    assert [back.step for back in nodes.resume([0, 1, 2])] == [2, 2, 2], "the third node comes back"


def test_a_checkpoint_that_is_named_is_not_removed(nodes: Nodes) -> None:
    nodes.save([1])
    killed(nodes, 2)
    errors = nodes.resume([0, 1], str(nodes.run(1).checkpoint(2)))
    assert {error.diagnostics[0].code for error in errors} == {"resume.only_incomplete"}
    assert steps(nodes)[1] == ["step-00000001", "step-00000002"]


def test_what_a_kill_leaves_always_shows_it(nodes: Nodes) -> None:
    """No node renames before all have sealed: else rank 0's folder could lack the manifest that tells."""
    killed(nodes, 1, 3)
    begun = [part for node in range(3) for part in begun_in(nodes.run(node).checkpoints)]
    assert begun and all(part["problem"] is None and part["digest"] for part in begun)
    survey = Survey({node: parts_in(nodes.run(node).checkpoints) for node in range(3)})
    assert [one.name for one in survey.interrupted(begun)] == ["step-00000001"]
