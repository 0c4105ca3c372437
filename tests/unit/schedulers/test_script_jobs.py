"""Scripts for machines without a scheduler, run by bash; ``ssh`` is a program that does what sshd does."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rendered_jobs import job, random_value

from paceline.core.errors import ConfigError
from paceline.schedulers.hosts import mpi_job, read_hosts, ssh_job
from paceline.schedulers.job import ArrayTask, ClusterJob
from paceline.schedulers.script_job import local_job
from paceline.schedulers.write_files import write_job

#: Stands for ``paceline``: records its call, and answers with the codes it is given, one a start.
_PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
rank = sys.argv[sys.argv.index("--node-rank") + 1] if "--node-rank" in sys.argv else "0"
calls = folder / f"calls-{rank}"
number = len(calls.read_text().splitlines()) if calls.is_file() else 0
secret = os.environ.get("PACELINE_STORE_SECRET_FILE", "")
call = {"argv": sys.argv[2:], "env": dict(os.environ), "secret": secret and Path(secret).read_text()}
with calls.open("a") as file:
    file.write(json.dumps(call) + "\\n")
code = json.loads((folder / "codes").read_text())[rank][number]
if code == "stays":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    (folder / f"stays-{rank}").touch()
    time.sleep(300)
if code == "asked":  # by `paceline stop`, before a step that can be saved
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run/stop-request.json").touch()
    code = 143
sys.exit(code)
"""
#: Pauses between restarts are written down, and take no time.
_SLEEP = """#!/bin/sh
case "$1" in 2|4|8) ;; *) exec /bin/sleep "$@" ;; esac
echo "$1" >> {pauses}
[ ! -e {asked} ] || touch {request}
"""
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
exec {shell} -c "$*"
"""


def prepared(folder: Path, codes: dict[str, list[int | str]], **changes: Any) -> ClusterJob:
    (folder / "program.py").write_text(_PROGRAM)
    (folder / "codes").write_text(json.dumps(codes))
    (folder / "hosts").write_text("# of the lab\nnode-a slots=8\nme@node-b slots=8\n\nnode-c slots=8\n")
    program = (sys.executable, str(folder / "program.py"), str(folder))
    launch = {"hostfile": str(folder / "hosts"), **changes.pop("launch", {})}
    return job(folder, program=program, launch=launch, **changes)


def started(of: ClusterJob, rendering: Any, shell: str = "sh") -> subprocess.Popen[str]:
    write_job(of.out, rendering, "private")
    programs = of.folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "ssh").write_text(_SSH.format(shell=shell))
    pauses, asked = of.folder / "pauses", of.folder / "stop-in-pause"
    (programs / "sleep").write_text(
        _SLEEP.format(pauses=pauses, asked=asked, request=f"{of.run}/stop-request.json")
    )
    for name in ("ssh", "sleep"):
        (programs / name).chmod(stat.S_IRWXU)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(of.folder)}
    ((script,),) = rendering.submit
    return subprocess.Popen([script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def answer(of: ClusterJob, rendering: Any, shell: str = "sh") -> tuple[int, str]:
    process = started(of, rendering, shell)
    out, _ = process.communicate(timeout=240)
    return process.returncode, out


def calls(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = folder / f"calls-{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_ssh_hands_every_value_on_as_it_was_written(tmp_path: Path, shell: str) -> None:
    """200 values through two shells, the local and the remote one."""
    values = [random_value(seed) for seed in range(200)]
    env = {f"V{number}": value for number, value in enumerate(values[:100])}
    settings = tuple(f"training.run_name={value}" for value in values[100:])
    of = prepared(tmp_path, {"0": [0], "1": [0]}, env=env, overrides=settings)
    code, out = answer(of, ssh_job(of), shell)
    assert code == 0, out
    for rank in (0, 1):
        (call,) = calls(tmp_path, rank)
        assert {name: call["env"][name] for name in env} == env
        meeting = ["--node-rank", str(rank), "--master-addr", "node-a", "--master-port", "29500"]
        processes = ["launch.max_restarts=0", "--nnodes", "2", "--nproc", "1", "--resume", "auto"]
        assert call["argv"] == ["train", str(tmp_path / "c.yaml"), *settings, *processes, *meeting]
    assert not Path("/tmp/hit").exists()


def test_ssh_gives_the_nodes_one_secret_that_no_command_line_holds(tmp_path: Path) -> None:
    of = prepared(tmp_path, {"0": [0], "1": [0]})
    assert answer(of, ssh_job(of))[0] == 0
    secret = (tmp_path / "out/store-secret").read_text()
    received = [calls(tmp_path, rank)[0] for rank in (0, 1)]
    assert [call["secret"] for call in received] == [secret, secret]
    assert secret not in (tmp_path / "out/run.sh").read_text()
    assert not any(Path(call["env"]["PACELINE_STORE_SECRET_FILE"]).exists() for call in received)


@pytest.mark.parametrize(
    ("codes", "expected", "starts"),
    [
        pytest.param({"0": [0], "1": [0]}, 0, 1, marks=pytest.mark.full),
        ({"0": [76, 0], "1": [137, 0]}, 0, 2),  # counted, and started again
        ({"0": [76], "1": [2]}, 2, 1),  # the node that failed by itself decides
        pytest.param({"0": [75], "1": [75]}, 75, 1, marks=pytest.mark.full),  # a person has stopped it
        pytest.param({"0": [1, 1], "1": [76, 76]}, 1, 2, marks=pytest.mark.full),  # no restart is left
    ],
)
def test_ssh_answers_with_the_code_of_the_node_that_failed(
    tmp_path: Path, codes: dict[str, list[int | str]], expected: int, starts: int
) -> None:
    of = prepared(tmp_path, codes, launch={"max_restarts": 1})
    code, out = answer(of, ssh_job(of))
    assert (code, len(calls(tmp_path))) == (expected, starts), out


def test_ssh_stops_all_nodes_when_one_fails(tmp_path: Path) -> None:
    of = prepared(tmp_path, {"0": ["stays"], "1": [2]})
    code, out = answer(of, ssh_job(of))
    assert code == 2, out  # the node that was stopped has saved: its 75 says less


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_ends_the_script_ends_the_nodes(tmp_path: Path, number: int) -> None:
    """Also where nothing can be sent any more: the end of their input stops them."""
    of = prepared(tmp_path, {"0": ["stays"], "1": ["stays"]})
    process = started(of, ssh_job(of))
    wait_for(lambda: all((tmp_path / f"stays-{rank}").exists() for rank in (0, 1)))
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    pattern = str(tmp_path / "program.py").encode()
    wait_for(lambda: not any(pattern in line for line in command_lines()))


def test_a_local_job_starts_again_after_failures_and_never_after_a_refusal(tmp_path: Path) -> None:
    for name, codes, expected, starts in (
        ("heals", [1, 137, 0], 0, 3),
        ("refused", [2, 0], 2, 1),
        ("stopped", [75, 0], 75, 1),
        ("fails", [1] * 9, 1, 4),
    ):
        folder = tmp_path / name
        folder.mkdir()
        of = prepared(folder, {"0": [*codes]}, nodes=1)
        code, out = answer(of, local_job(of))
        assert (code, len(calls(folder))) == (expected, starts), (name, out)
        pauses = folder / "pauses"
        waited = pauses.read_text().split() if pauses.exists() else []
        assert waited == ["2", "4"][: max(0, starts - 2)], (
            "a cause that stays does not start it at once again"
        )


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_stop_while_a_job_waits_for_its_restart_is_final(tmp_path: Path, nodes: int) -> None:
    of = prepared(tmp_path, {"0": [1, 137, 0], "1": [1, 137, 0]}, nodes=nodes)
    (tmp_path / "run").mkdir()
    (tmp_path / "stop-in-pause").touch()
    code, out = answer(of, (local_job if nodes == 1 else ssh_job)(of))
    assert (code, len(calls(tmp_path))) == (137, 2), out


def test_a_deliberate_stop_is_final_whatever_the_code(tmp_path: Path) -> None:
    """A request to an earlier start of the job is none to this one."""
    for name, nodes in (("local", 1), ("ssh", 2)):
        folder = tmp_path / name
        (folder / "run").mkdir(parents=True)
        (folder / "run/stop-request.json").touch()
        of = prepared(folder, {"0": [1, "asked", 0], "1": [76, 76, 0]}, nodes=nodes)
        code, out = answer(of, (local_job if nodes == 1 else ssh_job)(of))
        assert (code, len(calls(folder))) == (143, 2), out


def test_a_stopped_mpi_job_leaves_nothing_that_waits(tmp_path: Path) -> None:
    of = prepared(tmp_path, {"0": ["stays"]}, launch={"mpi": "mpich"})
    (tmp_path / "run").mkdir()
    (tmp_path / "programs").mkdir()
    mpi = tmp_path / "programs/mpiexec.hydra"
    asked = tmp_path / "run/stop-request.json"
    mpi.write_text(f"#!/bin/sh\ntouch {tmp_path}/runs\nwhile [ ! -e {asked} ]; do sleep 0.1; done\nexit 75\n")
    mpi.chmod(stat.S_IRWXU)
    process = started(of, mpi_job(of))
    wait_for((tmp_path / "runs").exists)
    process.terminate()
    process.communicate(timeout=60)  # the end of its output
    assert process.returncode == 75


def test_runs_of_a_sweep_are_refused_where_one_command_runs(tmp_path: Path) -> None:
    of = prepared(tmp_path, {}, nodes=1, tasks=(ArrayTask("a", (), str(tmp_path / "a")),))
    with pytest.raises(ConfigError, match="arrays of runs"):
        local_job(of)


def test_a_script_is_the_job_itself_and_takes_the_site_s_own_secret(tmp_path: Path) -> None:
    given = {"PACELINE_STORE_SECRET": "/etc/store"}
    for secrets in ({}, given):
        of = prepared(tmp_path, {}, secrets=secrets)
        for made in (ssh_job(of), mpi_job(of)):
            assert made.foreground and made.store_secret == (not secrets)
            assert ("PACELINE_STORE_SECRET_FILE=/" in made.files["run.sh"]) <= (not secrets)
    assert local_job(prepared(tmp_path, {}, nodes=1)).foreground


def test_a_local_job_hands_a_signal_on_and_waits(tmp_path: Path) -> None:
    of = prepared(tmp_path, {"0": ["stays"]}, nodes=1)
    process = started(of, local_job(of))
    wait_for((tmp_path / "stays-0").exists)
    process.terminate()
    process.communicate(timeout=120)
    assert (process.returncode, len(calls(tmp_path))) == (75, 1)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich", "intel"])
def test_mpi_names_the_hosts_and_the_variables(tmp_path: Path, mpi: str) -> None:
    of = prepared(tmp_path, {}, env={"A": "b c"}, launch={"mpi": mpi})
    made = mpi_job(of)
    assert made.files["hosts"].splitlines() == (
        ["node-a slots=1", "me@node-b slots=1"] if mpi == "openmpi" else ["node-a:1", "me@node-b:1"]
    )
    script = made.files["run.sh"]
    assert "export A='b c'\n" in script and "export MASTER_ADDR=node-a\n" in script
    names = ("PACELINE_SCHEDULER", "PACELINE_JOB_FOLDER", "A", "PACELINE_STORE_SECRET_FILE", "MASTER_ADDR")
    passed = " ".join(f"-x {name}" for name in names) if mpi == "openmpi" else f"-genvlist {','.join(names)}"
    assert passed in script and made.store_secret


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("node-a slots=8\n", "it has 1 hosts"),
        ("node-a slots=8\nnode-a slots=8\n", "twice"),
        ("node-a slots=1\nnode-b slots=1\n", "fewer slots"),
        ("node-a slots=8\n-oProxyCommand=id slots=8\n", "line 2"),
        ("node-a slots=8\nnode-b slots=many\n", "line 2"),
    ],
)
def test_a_file_of_hosts_that_does_not_fit_is_refused(tmp_path: Path, text: str, where: str) -> None:
    of = prepared(tmp_path, {}, nproc=8)
    (tmp_path / "hosts").write_text(text)
    for scheduler in (ssh_job, mpi_job):
        with pytest.raises(ConfigError, match=where) as refused:
            scheduler(of)
        assert all(finding.hint for finding in refused.value.diagnostics), "each says what to write instead"


def test_hosts_are_read_as_deepspeed_reads_them(tmp_path: Path) -> None:
    fetch_hostfile = pytest.importorskip("deepspeed.launcher.runner").fetch_hostfile
    path = tmp_path / "hosts"
    path.write_text("# c\n\nworker-1 slots=4\n10.0.0.2 slots=2 # x\n")
    assert {line.name: line.slots for line in read_hosts(path.read_text())} == dict(fetch_hostfile(str(path)))


def command_lines() -> list[bytes]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return lines


def wait_for(met: Any) -> None:
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)
