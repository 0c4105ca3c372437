"""A pod's probe: ready once a rank writes, silent ranks fail it, a full disk and ended ranks do not."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from paceline.core.rundir import RunDir
from paceline.runtime.failures import pod_probe
from paceline.runtime.failures.heartbeat import Heartbeat

HERE = socket.gethostname()


def answers(run: Path) -> int:
    return pod_probe.main([str(run)])


def sign(run: Path, rank: int, ago: float, phase: str = "step", host: str = HERE) -> None:
    path = RunDir.at(run).heartbeat(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"pid": 1, "host": host, "time": time.time() - ago, "step": 3, "phase": phase, "since": 0.0}
    path.write_text(json.dumps(state))


@pytest.fixture(autouse=True)
def old_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_probe, "container_start", lambda: time.time() - 86400)


def test_a_rank_that_writes_is_alive_and_one_that_has_ended_too(tmp_path: Path) -> None:
    assert answers(tmp_path) == 1, "before the first sign"
    RunDir.at(tmp_path).events_dir.mkdir()
    heartbeat = Heartbeat(RunDir.at(tmp_path).heartbeat(0), interval_seconds=0.01).start()
    until = time.monotonic() + 60
    while not RunDir.at(tmp_path).heartbeat(0).exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert answers(tmp_path) == 0
    heartbeat.stop()
    assert answers(tmp_path) == 0
    sign(tmp_path, 0, 3000, phase="ended")
    assert answers(tmp_path) == 0, "the launcher uploads"


def test_only_silence_of_all_ranks_of_this_host_counts(tmp_path: Path) -> None:
    sign(tmp_path, 0, 3000)
    sign(tmp_path, 1, 5)
    assert answers(tmp_path) == 0
    sign(tmp_path, 1, 3000)
    assert answers(tmp_path) == 1
    sign(tmp_path, 2, 5, host="another")
    assert answers(tmp_path) == 1


def test_signs_of_an_earlier_start_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_probe, "container_start", lambda: time.time() - 60)
    sign(tmp_path, 0, 100)
    sign(tmp_path, 1, 100, phase="ended")
    assert answers(tmp_path) == 1, "not started"


def test_silence_on_a_disk_that_takes_nothing_means_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not pod_probe.takes_files(Path("/proc/self")) and pod_probe.takes_files(tmp_path)
    sign(tmp_path, 0, 3000)
    monkeypatch.setattr(pod_probe, "takes_files", lambda folder: False)
    assert answers(tmp_path) == 0
    assert [path.name for path in RunDir.at(tmp_path).events_dir.iterdir()] == ["rank-00000.heartbeat"]


def test_the_container_began_when_its_first_process_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    began = pod_probe.container_start()
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert boot - 5 <= began <= time.time()
