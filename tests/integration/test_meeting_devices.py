"""Ranks that do not fit each other end by name before or as the group opens, long before the time-out."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import collect, free_port, rank_environment, run_ranks, start

pytestmark = pytest.mark.integration
WORKER = Path(__file__).with_name("meeting_worker.py")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_rank_of_another_torch_is_named_on_both(tmp_path: Path) -> None:
    codes, output = run_ranks("differs", 2, tmp_path, script=WORKER)
    assert codes == [3, 3], output
    for rank in (0, 1):
        [finding] = read(tmp_path / f"{rank}.json")
        assert (finding["code"], finding["evidence"]["ranks"]) == ("runtime.ranks_differ", [1])


def test_a_rank_that_does_not_come_to_the_first_reduce_is_named(tmp_path: Path) -> None:
    port = free_port()
    argv = [sys.executable, str(WORKER), "absent", str(tmp_path)]
    absent = start(argv, rank_environment(1, 2, port))
    first = start(argv, rank_environment(0, 2, port))
    codes, output = collect([first], 90)
    absent.send_signal(signal.SIGKILL)
    collect([absent], 30)
    assert codes == [3], output
    [finding] = read(tmp_path / "0.json")
    assert (finding["code"], finding["evidence"]) == ("runtime.first_reduce", {"silent_ranks": [1]})


def test_ranks_alike_meet_and_rank_0_knows_the_bandwidth(tmp_path: Path) -> None:
    codes, output = run_ranks("alike", 2, tmp_path, script=WORKER)
    assert codes == [0, 0], output
    [line] = read(tmp_path / "0.json")["links"]
    assert "all ranks: 2 ranks, all-reduce of 1 MiB at" in line and "GB/s" in line
    assert read(tmp_path / "1.json")["links"] == []
