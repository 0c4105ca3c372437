"""``launch.max_restarts``: the launcher starts a killed run again, which ends with the same bits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import warm
from test_killed_ranks import ranks_of
from test_train import end, events_of, start, steps_of, train, wait_for_step

from paceline.runlog.events import Notice

pytestmark = [pytest.mark.integration]
SIZES = {"save_strategy": "steps", "save_steps": 4, "logging_steps": 1}


def those_with(variable: str) -> dict[int, str]:
    """The command lines of the processes that have this variable."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


@pytest.mark.parametrize(
    "is_fresh",
    [False, pytest.param(True, marks=[pytest.mark.fresh, pytest.mark.full])],
    ids=["warm", "fresh"],
)
def test_a_killed_rank_costs_the_steps_since_the_last_save_and_no_bit(
    is_fresh: bool,
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"max_steps": 40, **SIZES}
    config = tiny(**sizes, output_dir=str(tmp_path / "run"))
    process = start({**config, "launch": {"max_restarts": 2}}, tmp_path, 2, {"OF_THIS_TEST": str(tmp_path)})
    wait_for_step(tmp_path / "run", 6, process)
    os.kill(ranks_of(process, 2)[1], signal.SIGKILL)
    done = end(process)
    assert done.code == 0, done.err
    if is_fresh:  # processes that are warm have no imports to spare
        assert "a restart will not wait for imports" in done.err
    assert those_with(f"OF_THIS_TEST={tmp_path}") == {}
    notes = [e.diagnostic for e in events_of(tmp_path / "run") if isinstance(e, Notice)]
    [restart] = [note for note in notes if note.code == "launch.restart"]
    assert "restart 1 of 2" in restart.what and "launch.worker_killed at step" in restart.found

    monkeypatch.setattr(warm.Popen, "allowed", True)
    whole = train(paceline, tiny(**sizes, output_dir=str(tmp_path / "whole")), tmp_path, 2)
    assert whole.code == 0, whole.err
    last = {name: {s.step: s.loss for s in steps_of(tmp_path / name)} for name in ("run", "whole")}
    assert last["run"] == last["whole"], "also of the steps that ran twice"
    saved = "checkpoints/step-00000040"
    files = sorted((tmp_path / "whole" / saved).rglob("*.safetensors"))
    assert files
    for file in files:
        other = tmp_path / "run" / file.relative_to(tmp_path / "whole")
        assert other.read_bytes() == file.read_bytes()


@pytest.mark.fresh
@pytest.mark.slow
def test_of_a_killed_launcher_nothing_stays(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    config = tiny(max_steps=100_000, **SIZES)
    mine = f"OF_THIS_TEST={tmp_path}"
    process = start({**config, "launch": {"max_restarts": 2}}, tmp_path, 2, {"OF_THIS_TEST": str(tmp_path)})
    wait_for_step(tmp_path / "run", 6, process)
    deadline = time.monotonic() + 240
    while not any("paceline.training.spare" in line for line in those_with(mine).values()):
        assert time.monotonic() < deadline, those_with(mine)
        time.sleep(0.1)
    os.kill(ranks_of(process, 2)[1], signal.SIGKILL)  # then ranks are forked from it
    while sum("paceline.training.spare" in line for line in those_with(mine).values()) != 3:
        assert time.monotonic() < deadline, those_with(mine)
        time.sleep(0.1)
    process.kill()
    process.communicate()
    while those_with(mine):
        assert time.monotonic() < deadline, those_with(mine)
        time.sleep(0.1)
