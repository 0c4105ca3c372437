"""A rank that is killed gives the run its exit code, whichever it is and whenever it happens, and every
rank's log says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_train import end, start, wait_for_step

from paceline.core.rundir import RunDir

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]


def ranks_of(process: subprocess.Popen[str], count: int) -> dict[int, int]:
    """The pids of the workers that ``process`` has started, from rank."""
    deadline = time.monotonic() + 240
    found: dict[int, int] = {}
    while len(found) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0") if parent == process.pid else []
            except OSError:
                continue
            found |= {int(v[5:]): int(entry.name) for v in variables if v.startswith(b"RANK=")}
        time.sleep(0.05)
    return found


def check_end(
    run: RunDir, process: subprocess.Popen[str], ranks: dict[int, int], killed: int, number: int
) -> None:
    name, done = signal.Signals(number).name, end(process)
    assert done.code == 128 + number, done.err
    assert done.err.count("error[launch.") == 1 and f"rank {killed} was ended by {name}" in done.err
    assert f"exit code {done.code}, from rank {killed}; how each rank ended: {run.exits()}" in done.err
    data = json.loads(run.exits().read_text())
    assert (data["exit_code"], data["rank"], data["cause"]["evidence"]["signal"]) == (done.code, killed, name)
    assert {one["rank"]: one["pid"] for one in data["ranks"]} == ranks
    result = json.loads(run.result_json.read_text())
    assert (result["outcome"], result["exit_code"]) == ("failed", done.code)
    assert result["diagnostics"][0]["code"] == "launch.worker_killed"
    assert not [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("strategy", "nproc", "killed", "number"),
    [
        ("ddp", 2, 0, signal.SIGKILL),
        ("ddp", 2, 1, signal.SIGSEGV),
        pytest.param("ddp", 2, 1, signal.SIGABRT, marks=pytest.mark.slow),
        pytest.param("fsdp", 2, 1, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("zero2", 2, 1, signal.SIGBUS, marks=pytest.mark.slow),
        pytest.param("ddp", 4, 3, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("ddp", 4, 0, signal.SIGFPE, marks=pytest.mark.slow),
    ],
)
def test_killed_in_a_step(
    strategy: str, nproc: int, killed: int, number: int, tiny: Tiny, tmp_path: Path
) -> None:
    run = RunDir.at(tmp_path / "run")
    config = tiny(max_steps=100_000, logging_steps=1000, distributed_strategy=strategy)
    process = start(config, tmp_path, nproc)
    wait_for_step(run.root, 3, process)
    ranks = ranks_of(process, nproc)
    os.kill(ranks[killed], number)
    check_end(run, process, ranks, killed, number)
    for rank in range(nproc):  # the root cause stands in every log, and no "lost the connection" beside it
        text = run.rank_log(rank).read_text()
        assert f"rank {killed} was ended by {signal.Signals(number).name}" in text and "peer_lost" not in text
    stacks = "Current thread" in run.rank_log(killed).read_text()
    assert stacks == (number != signal.SIGKILL)
    causes = {one["rank"]: one["cause"] for one in json.loads(run.exits().read_text())["ranks"]}
    assert causes == {rank: "signal" if rank == killed else "another_rank" for rank in range(nproc)}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_killed_while_it_starts(number: int, tiny: Tiny, tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    process = start(tiny(max_steps=100_000), tmp_path, 2)
    ranks = ranks_of(process, 2)
    os.kill(ranks[1], number)
    check_end(run, process, ranks, 1, number)


def test_a_request_for_the_stack_of_each_thread_is_answered_in_the_log(tiny: Tiny, tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    process = start(tiny(max_steps=100_000, logging_steps=1000), tmp_path, 1)
    wait_for_step(run.root, 2, process)
    os.kill(process.pid, signal.SIGUSR1)  # the launcher hands it on
    deadline = time.monotonic() + 240
    while "Current thread" not in run.rank_log(0).read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert end(process).code == 75  # it went on
    assert "Current thread" in run.rank_log(0).read_text()
