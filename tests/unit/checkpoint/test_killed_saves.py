"""Real SIGKILLs in the middle of saves: every life goes on from the newest complete checkpoint, and the last
ends where one that was never killed does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import run_process

SCRIPT = Path(__file__).with_name("killed_saves.py")


@pytest.mark.parametrize("kills", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_killed_and_gone_on(kills: int, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{SCRIPT.parents[3]}:{SCRIPT.parent}"}
    done = run_process(
        [sys.executable, str(SCRIPT), str(tmp_path / "run"), str(kills), "7"], 280, environ, tmp_path
    )
    assert done.code == 0, done.err[-2000:]
    found = json.loads(done.out.splitlines()[-1])
    assert found["problems"] == [] and found["steps"] > kills // 4
    assert found["tensor"] == found["wanted"]
