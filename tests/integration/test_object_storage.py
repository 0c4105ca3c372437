"""A run whose disk is lost goes on from its URL, with the losses of the one that was not interrupted."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Event, Notice, RunStarted, Step, read_events

pytestmark = [pytest.mark.integration, pytest.mark.fresh]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]


def events_of(run: Path) -> list[Event]:
    path = RunDir.at(run).events(0)
    return [record.event for record in read_events(path)] if path.is_file() else []


def steps_of(events: list[Event]) -> dict[int, tuple[Any, ...]]:
    return {e.step: (e.loss, e.grad_norm, e.sample_digest, e.lr) for e in events if isinstance(e, Step)}


KILLER = """
import os
import signal
from pathlib import Path

def on_event(event):
    '''Kill this rank once, some steps after a checkpoint is at its URL.'''
    done = Path("{folder}/killed")
    if event.kind == "step" and event.step >= 26 and Path("{committed}").exists() and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [1, 2])
def test_a_lost_disk_is_no_lost_run(tiny: Tiny, paceline: Paceline, tmp_path: Path, nproc: int) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    config = tiny(
        max_steps=60,
        save_strategy="steps",
        save_steps=20,
        save_total_limit=1,
        resume_from_checkpoint="auto",
        checkpoint_url=f"file://{store}",
        callbacks=["killer:on_event"],
        warmup_steps=3,
    )
    yaml = write_yaml(tmp_path / "c.yaml", config)
    committed = store / "commits/00000001.json"
    (tmp_path / "killer.py").write_text(KILLER.format(folder=tmp_path, committed=committed))
    killed = paceline("train", str(yaml), "--nproc", str(nproc))
    assert killed.code == 128 + signal.SIGKILL and (tmp_path / "killed").exists(), killed.err
    before = steps_of(events_of(run))
    shutil.rmtree(run)

    done = paceline("train", str(yaml), "--nproc", str(nproc))
    assert done.code == 0, done.err
    events = events_of(run)
    after, began = steps_of(events), next(e for e in events if isinstance(e, RunStarted))
    assert began.resumed_from == str(RunDir.at(run).checkpoint(began.start_step)) and began.start_step >= 20
    assert max(after) == 60 and min(after) == began.start_step + 1
    both = sorted(before.keys() & after.keys())
    assert len(both) >= 3 and [before[step] for step in both] == [after[step] for step in both]
    uploaded = [
        e.diagnostic.what for e in events if isinstance(e, Notice) and "is uploaded" in e.diagnostic.what
    ]
    assert uploaded[-1].startswith("step-00000060")
    head = json.loads(max((store / "commits").iterdir()).read_text())
    assert [one["name"] for one in head["checkpoints"]] == ["step-00000060"]
    assert len(list((store / "data").glob("*/manifest.json"))) == 1, "what retention dropped is gone"
    assert (store / "claims/00000002.ended").is_file()


def test_a_url_in_use_and_one_that_holds_a_run_are_refused(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    """Before anything is started, in one line that says what to do."""
    store = tmp_path / "store"
    (store / "commits").mkdir(parents=True)
    record = {
        "format": "paceline-objects",
        "version": 1,
        "number": 1,
        "writer": "w",
        "created": 1.0,
        "checkpoints": [
            {"name": "step-00000004", "step": 4, "sequence": 1, "bytes": 1, "folder": "data/step-00000004.x"}
        ],
        "dropped": [],
    }
    (store / "commits/00000001.json").write_text(json.dumps(record))
    yaml = write_yaml(tmp_path / "c.yaml", tiny(checkpoint_url=f"file://{store}"))
    done = paceline("train", str(yaml))
    assert done.code == 2 and "objects.holds_run" in done.err and "step-00000004" in done.err, done.err
    assert not (tmp_path / "run").exists() and not list((store / "probes").iterdir())


STUCK = """
import os
import signal
import threading

from paceline.checkpoint.object_store.obstore_backend import ObstoreStore

ObstoreStore.put_file = lambda *_: threading.Event().wait()  # a network that takes all day


def on_event(event):
    if event.kind == "step" and event.step == {step}:
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("nproc", "step"), [(1, 5), (2, 5), (1, 20)])
def test_a_stopped_run_ends_in_time_and_the_next_one_uploads(
    tiny: Tiny, paceline: Paceline, tmp_path: Path, nproc: int, step: int
) -> None:
    """The stop may come after the last step, too: then the resume has nothing else to do."""
    run, store = tmp_path / "run", tmp_path / "store"
    given = {"max_steps": 20, "save_strategy": "steps", "save_steps": 20, "resume_from_checkpoint": "auto"}
    more = {"checkpoint_url": f"file://{store}", "upload_timeout": 3, "warmup_steps": 3}
    yaml = write_yaml(tmp_path / "c.yaml", tiny(**given, **more, callbacks=["stuck:on_event"]))
    (tmp_path / "stuck.py").write_text(STUCK.format(step=step))
    stopped = paceline("train", str(yaml), "--nproc", str(nproc))
    assert stopped.code == 75, stopped.err
    found = [e.diagnostic for e in events_of(run) if isinstance(e, Notice)]
    (late,) = [one for one in found if one.code == "objects.not_in_time"]
    saved = max(RunDir.at(run).checkpoints.glob("step-*"))
    assert late.where == str(saved) and "within 3 s of the stop" in late.what
    assert not list((store / "commits").glob("*")) and (store / "claims/00000001.ended").is_file()
    assert json.loads((run / "result.json").read_text())["outcome"] == "stopped"

    yaml = write_yaml(tmp_path / "c.yaml", tiny(**given, **more))
    done = paceline("train", str(yaml), "--nproc", str(nproc))
    assert done.code == 0, done.err
    head = json.loads(max((store / "commits").iterdir()).read_text())
    assert {saved.name, "step-00000020"} >= {one["name"] for one in head["checkpoints"]}
    assert head["checkpoints"][-1]["name"] == "step-00000020"
