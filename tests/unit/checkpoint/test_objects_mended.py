"""Object storage when answers are lost: what is committed stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from object_stores import URL, MemoryStore, lost
from test_objects import Run, head_of, impatient, tree, upload_all, wait_until

from paceline.checkpoint.object_store.commits import COMMITS
from paceline.checkpoint.object_store.transfer import download_named

__all__ = ["impatient"]


class LostAnswers(MemoryStore):
    """While ``losing``, a commit acts, but neither its answer nor a read of it arrives."""

    losing = False

    def create(self, name: str, content: bytes) -> bool:
        done = super().create(name, content)
        if self.losing and name.startswith(COMMITS):
            raise lost(name)
        return done

    def get(self, name: str) -> bytes | None:
        if self.losing and name.startswith(COMMITS):
            raise lost(name)
        return super().get(name)


def test_a_commit_whose_answer_was_lost_keeps_its_objects(tmp_path: Path) -> None:
    store = LostAnswers()
    of = Run(store, tmp_path / "a")
    store.losing = True
    of.save(1)
    wait_until(lambda: of.codes() == ["objects.unavailable"])
    store.losing = False
    of.save(2)
    of.uploads.end()
    head = head_of(store)
    assert [one.step for one in head.checkpoints] == [1, 2], "the first had been committed after all"
    for one in head.checkpoints:
        there = download_named(store, replace(URL, step=one.name), tmp_path / "b").path
        assert tree(there) == tree(of.run.checkpoint(one.step))


@pytest.mark.parametrize("believed", ["failed", "dropped"])
def test_what_the_newest_record_names_cannot_be_removed(tmp_path: Path, believed: str) -> None:
    store = MemoryStore()
    of = upload_all(store, tmp_path, [1])
    named, before = head_of(store).checkpoints[0].folder, dict(store.objects)
    if believed == "failed":
        of.writer._failed[named] = ("state.json", "manifest.json")
    else:
        of.writer._dropped = (named,)
    of.writer.remove_dropped()
    assert store.objects == before
