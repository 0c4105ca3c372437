"""Two raylets on this machine, in a network and PID namespace of its own, and jobs that they are given.

``ray_cluster.py QUESTION ANSWER``: a list of ``{submit, at, kill}``. ``submit`` is argv of ``ray job
submit``; once the path ``at`` appears the job is stopped, or a process like ``kill`` is killed. The answers
are the jobs' status, message and log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ADDRESS = "10.9.0.1"
BIN = Path(sys.executable).parent
DEADLINE_SECONDS = 600.0


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def start(folder: str) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "lo")
    ray, common = str(BIN / "ray"), ("--num-cpus=2", "--object-store-memory=100000000")
    head = ("--head", "--port=6380", f"--dashboard-host={ADDRESS}", f"--temp-dir={folder}")
    run(ray, "start", f"--node-ip-address={ADDRESS}", *head, *common)
    run(ray, "start", f"--address={ADDRESS}:6380", f"--node-ip-address={ADDRESS}", *common)


def ranks(pattern: str) -> list[int]:
    """The processes whose command line has ``pattern``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if re.search(pattern, words):
            found.append(int(path.parent.name))
    return sorted(found)


def job(client: Any, one: dict[str, Any]) -> dict[str, Any]:
    submitted = run(str(BIN / "ray"), *one["submit"][1:])
    match = re.search(r"raysubmit_\w+", submitted)
    assert match, submitted
    name, waits, until = match[0], one.get("at"), time.monotonic() + DEADLINE_SECONDS
    while not (status := client.get_job_status(name)).is_terminal():
        assert time.monotonic() < until, client.get_job_logs(name)[-3000:]
        if waits and Path(waits).exists():
            waits = None
            if one.get("kill"):
                os.kill(ranks(one["kill"])[-1], signal.SIGKILL)
            else:
                client.stop_job(name)
        time.sleep(0.2)
    info = client.get_job_info(name)
    return {"status": str(status), "message": info.message, "log": client.get_job_logs(name)}


def main() -> None:
    from ray.job_submission import JobSubmissionClient

    question, answer = map(Path, sys.argv[1:])
    asked = json.loads(question.read_text())
    try:
        start(asked["folder"])
        client = JobSubmissionClient(f"http://{ADDRESS}:8265")
        answer.write_text(json.dumps([job(client, one) for one in asked["jobs"]]))
    finally:
        subprocess.run([str(BIN / "ray"), "stop", "--force"], capture_output=True, check=False)


if __name__ == "__main__":
    main()
