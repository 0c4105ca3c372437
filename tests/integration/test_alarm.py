"""Contract 7: whatever happens to one rank, every rank names it within seconds, even when blocked inside
an all-reduce.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import STRATEGIES, base_environment, collect, free_port, run_ranks, start

from paceline.core.errors import ExitCode

pytestmark = pytest.mark.integration

SECONDS = 60.0  # from the last good step to the end of the last process; 2 to 4 on a quiet machine, and a
# hang takes the group's time-out


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def codes_and_delay(tmp_path: Path, how: str, rank: int) -> tuple[list[int], float, list[str]]:
    codes, output = run_ranks(f"fails:{how},{rank}", 2, tmp_path)
    ended = time.time()
    began = max(read(p) for p in tmp_path.glob("*.failing_at.json"))
    return codes, ended - began, output


@pytest.mark.parametrize("failing", [0, 1])
def test_both_ranks_name_the_failing_ranks_error(tmp_path: Path, failing: int) -> None:
    codes, delay, output = codes_and_delay(tmp_path, "raise", failing)
    other = 1 - failing
    assert codes[failing] == ExitCode.FAILED, output
    assert codes[other] == ExitCode.PEER_FAILED, output
    heard = read(tmp_path / f"{other}.heard.json")
    assert heard["rank"] == failing
    assert heard["diagnostic"]["what"] == f"row 17 broke rank {failing}"
    assert heard["diagnostic"]["where"] == "train.jsonl:18"
    assert read(tmp_path / f"{failing}.own.json")["diagnostic"]["what"] == f"row 17 broke rank {failing}"
    assert len(json.dumps(heard)) < 40_000, "the evidence of 100,000 characters was to be cut"
    assert delay < SECONDS


def test_a_killed_rank_is_named_by_the_survivor(tmp_path: Path) -> None:
    codes, delay, output = codes_and_delay(tmp_path, "kill", 1)
    assert codes == [ExitCode.FAILED, -9], output
    found = read(tmp_path / "0.own.json")["diagnostic"]
    assert found["code"] == "test.peer_lost"
    assert found["evidence"]["silent"] == [1]
    assert delay < SECONDS + 5


def test_the_death_of_the_stores_host_is_named(tmp_path: Path) -> None:
    codes, delay, output = codes_and_delay(tmp_path, "kill", 0)
    assert codes == [-9, ExitCode.PEER_FAILED], output
    heard = read(tmp_path / "1.heard.json")
    assert heard["diagnostic"]["code"] == "runtime.store_lost"
    assert heard["diagnostic"]["evidence"]["silent_ranks"] == [0]
    assert delay < SECONDS + 5


def test_under_torchrun_the_root_cause_is_the_failing_rank(tmp_path: Path) -> None:
    """The others leave after the failing rank, so torchrun reports that one first; the store is the
    agent's here.
    """
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={free_port()}",
        str(STRATEGIES),
        "fails:bug,1",
        str(tmp_path),
    ]
    codes, output = collect([start(argv, base_environment())], 120)
    assert codes == [1], output
    root = output[0].split("Root Cause")[-1]
    assert re.search(r"rank\s*:\s*1 ", root), output[0][-3000:]
    assert re.search(r"exitcode\s*:\s*1 ", root), output[0][-3000:]
    assert read(tmp_path / "0.heard.json")["diagnostic"]["what"] == "ZeroDivisionError: a bug of rank 1"
