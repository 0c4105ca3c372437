"""Every folder that a crash during a save may leave, rebuilt from the recorded calls: a resume takes the
newest complete checkpoint in it, and never begins anew without a word where a save was begun.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import FILES, OneRank, on_ranks, sample_shards
from recorded import Crash, Recorder, Tree, crashes, read_tree, write_tree

from paceline.checkpoint.checkpointer import AsyncCheckpointer, Checkpointer
from paceline.checkpoint.format.verify_files import open_part, read_manifest, verify_open
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.node_local.inventory import Survey, files_of, parts_in
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

Told = tuple[str, int]  # a folder's name, and the number of the save


def save(run: RunDir, step: int, number: int = 0, keep: int | None = 1) -> None:
    Checkpointer(run, OneRank(), keep).save(
        step, sample_shards(step), {"step": step, "number": number}, FILES
    )


def one_after_the_other(run: RunDir, saved: Callable[[int], None]) -> None:
    """The first and the second, which removes the first."""
    for step in (1, 2):
        save(run, step)
        saved(step)


def the_same_again(run: RunDir, saved: Callable[[int], None]) -> None:
    """One in the place of another of the same step, then a third."""
    for number, step in enumerate((1, 1, 2)):
        save(run, step, number)
        saved(step)


def beside_leftovers(run: RunDir, saved: Callable[[int], None]) -> None:
    """Over what a killed save has left, with a best one that is kept."""
    one = Checkpointer(run, OneRank(), 1)
    one.protect(1)
    save(run, 1)
    saved(1)

    def killed(point: str) -> None:
        if point == "agreed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Checkpointer(run, OneRank(), 1, crash=killed).save(2, sample_shards(2), {"step": 2}, FILES)
    kept = Checkpointer(run, OneRank(), 1)
    kept.save(3, sample_shards(3), {"step": 3}, FILES)
    saved(3)


def two_ranks(run: RunDir, saved: Callable[[int], None]) -> None:
    for step in (1, 2):
        shards = sample_shards(step)

        def work(rank: Any, shards: Any = shards, step: int = step) -> None:
            Checkpointer(run, rank, 1).save(step, shards[rank.rank :: 2], {"step": step}, FILES)

        assert on_ranks(2, work) == [None, None]
        saved(step)


def beside_training(run: RunDir, saved: Callable[[int], None]) -> None:
    saves = AsyncCheckpointer(Checkpointer(run, OneRank(), 1), OneRank(), torch.device("cpu"))
    for step in (1, 2):
        saves.start(step, sample_shards(step), {"step": step}, FILES)
        assert saves.end() is not None
        saved(step)


WAYS = [one_after_the_other, the_same_again, beside_leftovers, two_ranks, beside_training]


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_at_any_moment(way: Callable[[RunDir, Callable[[int], None]], None], tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    published: dict[Told, Tree] = {}

    def saved(step: int) -> None:
        told = (run.checkpoint(step).name, len(published))
        published[told] = read_tree(run.checkpoint(step))
        recorder.told(told)

    with Recorder(run.root) as recorder:
        way(run, saved)
    states = list(crashes(recorder.operations, recorder.folders))
    assert states[-1].told and len(states) > 100
    whole = [s for s in states if s.after == len(recorder.operations) and "killed" in s.how]
    assert whole and whole[0].tree == read_tree(run.root), "a call that is not recorded"
    wrong = []
    for number, state in enumerate(states):
        place = RunDir.at(tmp_path / "crashed")
        write_tree(state.tree, place.root)
        if problem := judged(state, place, published):
            wrong.append(f"after {state.after} of {len(recorder.operations)}, {state.how}: {problem}")
        elif number % 16 == 0:  # the next save finds its way, too
            save(place, 9)
            found = find_checkpoint("latest", place)
            assert found == place.checkpoint(9), (state.how, found)
        shutil.rmtree(place.root)
    assert not wrong, f"{len(wrong)} of {len(states)}:\n" + "\n".join(wrong[:10])


def judged(state: Crash, run: RunDir, published: dict[Told, Tree]) -> str:
    """What is wrong with what a resume does there; empty: nothing."""
    there = complete(state.tree, published)
    told = [published[one] for one in state.told]
    if told and not any(published[one] == told[-1] for one in there) and not newer(there, state.told[-1]):
        return f"the checkpoint {state.told[-1]} was said to be durable and is not there"
    notes: list[Any] = []
    try:
        found = find_checkpoint("auto", run, notes)
    except CheckpointError as error:
        return f"refused: {error.diagnostics[0].render()}" if there else ""
    if found is None:
        left = [p for p, content in state.tree.items() if p.startswith("checkpoints/") and content is None]
        return "a fresh start" if there or told else "a silent fresh start" if left and not notes else ""
    newest = max(there, key=lambda one: one[1], default=None)
    if newest is None:
        return f"{found.name} is taken, which is not complete"
    return "" if read_tree(found) == published[newest] else f"{found.name} is not the newest: {newest}"


def newer(there: list[Told], told: Told) -> bool:
    return any(number > told[1] for _, number in there)


def complete(tree: Tree, published: dict[Told, Tree]) -> list[Told]:
    """The saves of which every byte is there, under a name that says so."""
    found = []
    for told, files in published.items():
        names = {path.split("/")[1] for path in tree if path.startswith("checkpoints/") and "/" in path}
        for name in names:
            if name != told[0] and not name.startswith(f".replaced-{told[0]}-"):
                continue
            start = f"checkpoints/{name}/"
            if {p[len(start) :]: c for p, c in tree.items() if p.startswith(start)} == files:
                found.append(told)
    return found


def two_nodes(root: Path, saved: Callable[[int], None]) -> None:
    """Two nodes with a folder each: two saves, of which the second removes the first, and one of the same
    step again.
    """
    for number, step in enumerate((1, 2, 2)):
        shards = sample_shards(step)[:2]

        def work(rank: Any, shards: Any = shards, step: int = step, number: int = number) -> None:
            saver = Checkpointer(RunDir.at(root / str(rank.rank)), rank, 1, disks=Disks((0, 1)))
            saver.save(step, shards[rank.rank :: 2], {"step": step, "number": number}, {})

        assert on_ranks(2, work) == [None, None]
        saved(step)


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_any_moment_on_two_nodes(share: int, tmp_path: Path) -> None:
    """What is left on both together: always the newest that was told, or the one that was being saved. Every
    fourth state by default: pytest --slow looks at all.
    """
    root, published = tmp_path / "nodes", list[str]()
    for node in "01":
        (root / node / "checkpoints").mkdir(parents=True)

    def told(step: int) -> None:
        published.append(digests(root)[0])
        recorder.told(len(published) - 1)

    with Recorder(root, "0", "0/checkpoints", "1", "1/checkpoints") as recorder:
        two_nodes(root, told)
    states = list(crashes(recorder.operations, recorder.folders))
    assert states[-1].told == (0, 1, 2) and len(states) > 300
    whole = [s for s in states if s.after == len(recorder.operations) and "killed" in s.how]
    assert whole[0].tree == read_tree(root), "a call that is not recorded"
    wrong, seen = [], set()
    for number, state in enumerate(states):
        if number % share:
            continue
        place = tmp_path / "crashed"
        write_tree(state.tree, place)
        there = digests(place)
        seen.add((there[:1] or ["none"])[0])
        newest = published.index(there[0]) if there else -1
        if newest < max(state.told, default=-1):
            wrong.append(f"after {state.after} of {len(recorder.operations)}, {state.how}: {newest}")
        elif number % 40 == 0:  # the next save finds its way, too, and leaves nothing else
            two_nodes(place, lambda step: None)
            left = {path.name for path in place.glob("*/checkpoints/*")}
            assert left == {"latest", "step-00000002"}, (state.how, sorted(state.tree), left)
        shutil.rmtree(place)
    assert not wrong, f"{len(wrong)} of {len(states)}:\n" + "\n".join(wrong[:10])
    assert seen == {"none", *published}


def digests(root: Path) -> list[str]:
    """The manifests of the checkpoints that both nodes have whole together, newest first."""
    survey = Survey({node: parts_in(root / str(node) / "checkpoints") for node in (0, 1)})
    for one in survey.whole:  # their bytes are those that were written
        for node, folder in one.folders.items():
            path = root / str(node) / "checkpoints" / folder
            manifest = read_manifest(path)
            for name in (files_of(manifest)[at] for at in one.have[node]):
                if not manifest.files[name].blocks:
                    with open_part(path, name) as file:
                        verify_open(file, manifest.files[name], path, name)
    return [one.digest for one in reversed(survey.whole)]
