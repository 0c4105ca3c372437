"""A run whose trackers are slow, offline, failing and hanging is the run without them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Notice, Step, read_events

pytestmark = [pytest.mark.integration]
SECRET = "canarytracker5t8r1w"
STAND_INS = """
import os, threading, time

class Quick:
    def __init__(self, run_dir, name, config):
        self.file = open(os.path.join(run_dir, "quick.txt"), "w")
    def log(self, step, values):
        self.file.write(f"{step} {threading.current_thread() is threading.main_thread()}\\n")
    def close(self):
        self.file.close()

class Slow(Quick):
    def __init__(self, run_dir, name, config):
        pass
    def log(self, step, values):
        time.sleep(1.5)
    def close(self):
        pass

class Offline(Slow):
    def __init__(self, run_dir, name, config):
        raise ConnectionError("no route to host for " + os.environ["MY_TRACKER_KEY"])

class Failing(Slow):
    def log(self, step, values):
        raise OSError("disk full")

class Hanging(Slow):
    def log(self, step, values):
        threading.Thread(target=threading.Event().wait).start()  # no daemon: Python's own exit waits for it
        threading.Event().wait()
"""
NAMES = ("Quick", "Slow", "Offline", "Failing", "Hanging")


def test_trackers_of_every_kind_change_nothing(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "stand_ins.py").write_text(STAND_INS, encoding="utf-8")
    losses, results = [], []
    for name, report_to in (("without", "none"), ("with", [f"stand_ins:{one}" for one in NAMES])):
        run = tmp_path / name
        config = tiny(output_dir=str(run), report_to=report_to, save_strategy="steps", save_steps=8)
        yaml = write_yaml(tmp_path / f"{name}.yaml", config)
        env = {"PYTHONPATH": str(tmp_path), "MY_TRACKER_KEY": SECRET}
        done = paceline("train", str(yaml), env=env, deadline=120)
        assert done.code == 0, done.err
        found = [record.event for record in read_events(RunDir.at(run).events(0))]
        losses.append([(e.loss, e.grad_norm) for e in found if isinstance(e, Step)])
        results.append(json.loads((run / "result.json").read_text(encoding="utf-8")))
        said = [e.diagnostic for e in found if isinstance(e, Notice) and "tracker" in e.diagnostic.code]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert results[1]["outcome"] == results[0]["outcome"] == "completed"
    assert (tmp_path / "with" / "quick.txt").read_text() == "".join(f"{n} False\n" for n in range(1, 9))
    by_name = {d.what.split()[0].partition(":")[2]: d for d in said}
    assert {name: d.code for name, d in by_name.items()} == {
        "Slow": "tracker.unsent",
        "Offline": "tracker.failed",
        "Failing": "tracker.failed",
        "Hanging": "tracker.unsent",
    }
    assert len(said) == 4 and "disk full" in by_name["Failing"].found
    assert "no route to host for ***" in by_name["Offline"].found and SECRET not in done.out + done.err
    assert all(
        SECRET not in path.read_text("utf-8", "replace") for path in (tmp_path / "with").rglob("*.*l*")
    )
