"""A rank that dies is named within seconds though nothing that the others wait in notices it (as under NCCL);
every group has the run's time-out.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from ranks import HANGS, collect, free_port, rank_environment, run_ranks, start

from paceline.core.errors import ExitCode

pytestmark = pytest.mark.integration
WORKER = Path(__file__).with_name("presence_worker.py")


@pytest.mark.parametrize("dying", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_death_is_named_on_every_other_rank(tmp_path: Path, dying: int) -> None:
    port = free_port()
    argv = [sys.executable, str(WORKER), "waits", str(tmp_path)]
    ranks = [start(argv, rank_environment(rank, 3, port)) for rank in range(3)]
    deadline = time.monotonic() + HANGS
    while len(list(tmp_path.glob("*.ready"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks[dying].send_signal(signal.SIGKILL)
    codes, output = collect(ranks, HANGS)  # ddp_timeout is half an hour
    others = [rank for rank in range(3) if rank != dying]
    assert [codes[rank] for rank in others] == [ExitCode.PEER_FAILED] * 2, output
    for rank in others:
        named = json.loads((tmp_path / f"{rank}.heard.json").read_text())
        assert named == [dying, "runtime.rank_died", int(ExitCode.PEER_FAILED)] or (
            rank != 0 and named[:2] == [0, "runtime.rank_died"]  # as rank 0 passed it on
        )


def test_every_group_has_the_time_out_those_of_flatten_too(tmp_path: Path) -> None:
    codes, output = run_ranks("groups", 2, tmp_path, script=WORKER)
    assert codes == [0, 0], output
    limits, links = json.loads((tmp_path / "0.json").read_text())
    assert len(limits) >= 3 and set(limits) == {"0:01:17"}
    assert [line.split()[1] for line in links] == ["all", "cp:"]
