"""Each durable checkpoint of a run goes to its URL; what is heard of that, and how the run ends."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from paceline.checkpoint import codes
from paceline.checkpoint.checkpointer import SaveCost
from paceline.checkpoint.object_store.background_upload import Deadline
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.training.checkpointing.saver import RunCheckpointer

UP = codes.OBJECTS_UPLOADED("s3://bucket/run", name="up", url="s3://bucket/run")
DOWN = codes.OBJECTS_UNAVAILABLE("the store is down", "s3://bucket/run")


class Uploads:
    def __init__(self, error: CheckpointError | None = None) -> None:
        self.sent: list[tuple[Path, str | None]] = []
        self.error = error

    def published(self, path: Path, best: str | None = None) -> None:
        self.sent.append((path, best))

    def take_notes(self) -> list[Diagnostic]:
        return [UP] * len(self.sent)

    def end(self, waiting: Any, deadline: Deadline, any_rank: Any) -> bool:
        waiting()
        if self.error is not None:
            raise self.error
        return any_rank(deadline.left() > 0)


def saves(uploads: Uploads, heard: list[Diagnostic], *, keep_best: bool = False) -> RunCheckpointer:
    world = SimpleNamespace(strategy=SimpleNamespace(world=SimpleNamespace(any=bool)))
    parts = SimpleNamespace(state=SimpleNamespace(best_step=3), runner=world)
    contents: Any = SimpleNamespace(parts=parts, state=dict, shards=lambda step: [], files={})
    checkpointer = mock.Mock(last=SaveCost(1.0, 10))
    checkpointer.save.side_effect = lambda step, *_: Path(f"/run/checkpoints/step-{step:08d}")
    return RunCheckpointer(
        contents,
        checkpointer,
        lambda event, notes: None,
        keep_best=keep_best,
        uploads=uploads,  # type: ignore[arg-type]
        note=heard.append,
    )


@pytest.mark.parametrize("keep_best", [False, True])
def test_each_checkpoint_is_sent_and_its_notes_are_heard_between_steps(keep_best: bool) -> None:
    uploads, heard = Uploads(), list[Diagnostic]()
    of = saves(uploads, heard, keep_best=keep_best)
    assert of.save(4) and of.save(8)
    best = "step-00000003" if keep_best else None
    assert uploads.sent == [(Path(f"/run/checkpoints/step-0000000{n}"), best) for n in (4, 8)]
    assert heard == [] and not of.settle(wait=False) and heard == [UP, UP]


def test_the_run_ends_with_the_error_of_its_last_upload() -> None:
    uploads, heard, waited = Uploads(CheckpointError(DOWN)), list[Diagnostic](), mock.Mock()
    of = saves(uploads, heard)
    of.save(4)
    with pytest.raises(CheckpointError, match="the store is down"):
        of.finish(waited, Deadline())
    assert waited.called and heard == [UP], "what was to be said is said before the error"


def test_a_run_without_a_url_has_nothing_to_wait_for() -> None:
    of = saves(None, [])  # type: ignore[arg-type]
    of.save(4)
    of.settle(wait=False)
    assert of.finish(lambda: pytest.fail("nothing is waited for"), Deadline(0.0, lambda: 0.0))


def test_a_stopped_run_is_told_whether_its_last_upload_came_in_time() -> None:
    of = saves(Uploads(), [])
    of.save(4)
    assert of.finish(lambda: None, Deadline()) is True
    assert of.finish(lambda: None, Deadline(0.0, time.monotonic)) is False
