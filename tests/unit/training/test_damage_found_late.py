"""A checkpoint that turns out to be damaged when its bytes have been loaded: the one before, or its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.save.retention import is_being_read, last_verified
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.training.checkpointing.resume import Damaged, ResumeCandidates, ResumePoint
from paceline.training.loop.train_state import TrainState
from paceline.training.run.build import RunBuilder

PLAN: Any = SimpleNamespace(name="plan")


class OneRank:
    rank = 0
    world_size = 1

    def all_gather_json(self, value: Any) -> list[Any]:
        return [value]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.at(tmp_path / "run")
    for step in (1, 2, 3):
        shard = Shard("policy", "w", "param", (4,), (0,), torch.full((4,), float(step)))
        state = {"train": TrainState(step=step).to_json()}
        Checkpointer(run, OneRank()).save(step, [shard], state, {})
    return run


def newest(run: RunDir, plan: Any = PLAN) -> Callable[[Damaged], ResumePoint]:
    """As ``open_resume`` of one rank: the newest that is not known to be damaged."""

    def opened(known: Damaged) -> ResumePoint:
        left = [s for s in (3, 2, 1) if run.checkpoint(s) not in known]
        reader = CheckpointReader(run.checkpoint(left[0]), ranks=OneRank())
        note = Diagnostic("test.opened", str(left[0]))
        return ResumePoint(
            reader, plan if left[0] == 3 or plan is PLAN else SimpleNamespace(other=1), (note,)
        )

    return opened


def flip(run: RunDir, step: int) -> None:
    path = next(run.checkpoint(step).glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def restore(run: RunDir, resumes: ResumeCandidates) -> tuple[int, list[float]]:
    """Restore through ``RunBuilder.restore`` with a strategy that reads one weight."""
    weight = torch.zeros(4)

    def load(handle: object, reader: CheckpointReader) -> None:
        weight.copy_(reader.read("policy", "w", "param"))
        assert is_being_read(reader.path), "another run could prune it now"

    role = Role.POLICY
    algorithm: Any = SimpleNamespace(trains=(role,), load_state=lambda state: None)
    handles: Any = {role: SimpleNamespace(root=SimpleNamespace(hf=object(), adapter=None))}
    session: Any = SimpleNamespace(reader=resumes.reader, former=resumes.former)
    state = RunBuilder.restore(session, SimpleNamespace(import_state=load), handles, algorithm)  # type: ignore[arg-type]
    assert session.reader is resumes.reader
    resumes.mark()
    return state.step, weight.tolist()


@pytest.fixture(autouse=True)
def no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.training.run.build.adapter_of", lambda root: None)
    monkeypatch.setattr("paceline.training.run.build.same_base", lambda state, adapter, role: None)


@pytest.mark.parametrize(("harmed", "taken"), [((), 3), ((3,), 2), ((3, 2), 1)])
def test_the_newest_sound_one_is_what_is_loaded(run: RunDir, harmed: tuple[int, ...], taken: int) -> None:
    for step in harmed:
        flip(run, step)
    notes: list[Diagnostic] = []
    resumes = ResumeCandidates(newest(run), notes.append)
    assert restore(run, resumes) == (taken, [float(taken)] * 4)
    assert [note.what for note in notes] == ["3", "2", "1"][: len(harmed) + 1]
    assert last_verified(run.checkpoints) == run.checkpoint(taken).name
    assert resumes.reader is not None
    resumes.reader.close()


def test_one_of_another_plan_does_not_replace_it(run: RunDir) -> None:
    flip(run, 3)
    resumes = ResumeCandidates(newest(run, plan=SimpleNamespace()), lambda note: None)
    with pytest.raises(CheckpointError, match=r"checkpoint\.damaged"):
        restore(run, resumes)
    assert resumes.reader is not None
    resumes.reader.close()


def test_one_with_other_tensors_does_not_replace_it(run: RunDir) -> None:
    """What it lacks would stay as the damaged one had it."""
    Checkpointer(run, OneRank()).save(2, [], {"train": {"step": 2}}, {})
    resumes = ResumeCandidates(newest(run), lambda note: None)
    assert resumes.reader is not None
    with pytest.raises(CheckpointError, match="damage here"):
        resumes.former(damaged(run.checkpoint(3), "x", "damage here"))
    resumes.reader.close()


def test_a_run_whose_checkpoint_is_named_ends_with_its_error(run: RunDir) -> None:
    flip(run, 3)

    def only(known: Damaged) -> ResumePoint:
        if run.checkpoint(3) in known:
            raise known[run.checkpoint(3)]
        return replace(newest(run)(known), notes=())

    resumes = ResumeCandidates(only, lambda note: None)
    with pytest.raises(CheckpointError, match=r"checkpoint\.damaged"):
        restore(run, resumes)
