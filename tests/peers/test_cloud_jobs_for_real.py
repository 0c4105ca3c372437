"""dstack's own server, which has no machines, and SkyPilot's own records: jobs are asked, stopped, resumed.

What they print is kept in ``recorded/cloud_jobs.json`` for the tests that have neither.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "schedulers"))

from ask import HERE, ask, interpreter
from remote_jobs import job_in, rendered

from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers.control import answer_of, control_of
from paceline.schedulers.write_files import write_job

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]
RECORDED = HERE / "recorded" / "cloud_jobs.json"
TOKEN = "a-token-of-this-test"
#: SkyPilot's jobs: (number, name, status, reason)
JOBS = [
    [1, "my-run", "FAILED_SETUP", "no driver"],
    [3, "my-run", "RUNNING", None],
    [2, "other", "SUCCEEDED", None],
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which ``dstack`` speaks to a server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    home = tmp_path / "home"
    home.mkdir()
    folder = Path(interpreter("dstack")).parent
    environ = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "DSTACK_SERVER_DIR": str(tmp_path / "server"),
        "DSTACK_SERVER_ADMIN_TOKEN": TOKEN,
    }
    with open(tmp_path / "server.log", "wb") as log:
        argv = [str(folder / "dstack"), "server", "--host", "127.0.0.1", "--port", port, "-y"]
        process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            until(lambda: "is running at" in (tmp_path / "server.log").read_text(), "the server")
            yield environ
        finally:
            process.terminate()
            process.wait()


def until(condition: Any, what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def test_a_run_of_dstack(tmp_path: Path, server: dict[str, str]) -> None:
    fleet = tmp_path / "fleet.dstack.yml"
    fleet.write_text("type: fleet\nname: no-machines\nnodes: 0..4\n")
    answer_of(
        ("sh", "-c", 'cd -- "$0" && exec "$@"', str(tmp_path), "dstack", "apply", "--yes", "-f", fleet.name),
        server,
    )
    # an image would be looked up in its registry
    job = job_in(tmp_path, site={"image": None})
    rendering = rendered("dstack", job)
    write_job(job.out, rendering, "private")
    record = LaunchedBy.submitted("dstack", rendering.name, job.run, job.out)
    control = control_of(record)
    assert "lists none" in control.state(record, server)
    printed: dict[str, Any] = {}

    def ended() -> bool:
        return "terminated" in control.state(record, server)

    for start in ("first", "again"):  # resume submits what launch had submitted
        answer_of(control.resume(record, server), server)
        assert any(word in control.state(record, server) for word in ("submitted", "pending"))
        printed["waits"] = listing(server)
        assert "saves and ends" in control.stop(record, server), start
        until(ended, "the run ends")
        printed["ended"] = listing(server)
        assert control.state(record, server) == "job my-run: terminated (stopped_by_user)"
        assert "nothing to stop" in control.stop(record, server)
    (known,) = ask("dstack", "statuses", [""], tmp_path)
    keep("dstack", {**printed, "statuses": known})


def listing(server: dict[str, str]) -> Any:
    """Return what ``dstack ps`` prints, without the long description of each node."""
    listed = json.loads(answer_of(("dstack", "ps", "--all", "--json"), server))
    names = ("status", "status_message", "termination_reason", "error")
    runs = [
        {**{name: run[name] for name in names}, "run_spec": {"run_name": run["run_spec"]["run_name"]}}
        for run in listed["runs"]
    ]
    return {"project": listed["project"], "runs": runs}


def test_a_job_of_skypilot(tmp_path: Path) -> None:
    (printed,) = ask("skypilot", "listed", [JOBS], tmp_path)
    (known,) = ask("skypilot", "statuses", [""], tmp_path)
    kept = [{name: value for name, value in job.items() if value is not None} for job in printed]
    keep("skypilot", {"jobs": kept, "statuses": known})


def keep(system: str, answers: Any) -> None:
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    RECORDED.write_text(json.dumps({**recorded, system: answers}, indent=1, sort_keys=True) + "\n")
