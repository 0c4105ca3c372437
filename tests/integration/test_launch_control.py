"""A run's launch: recorded, asked, stopped and gone on with, on this machine and on machines apart."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machines_apart
import pytest
from machines_apart import MachinesApart
from ruamel.yaml import YAML
from support import ROOT, Run, run_process, write_yaml
from test_train import steps_of

from paceline.core.rundir import RunDir

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]
HANGS = 300.0


def wait_for_step(run: Path, step: int) -> None:
    events, end = RunDir.at(run).events(0), time.monotonic() + HANGS
    while not events.is_file() or events.read_bytes().count(b'"kind":"step"') < step:
        assert time.monotonic() < end, "no step"
        time.sleep(0.1)


@pytest.mark.full
@pytest.mark.fresh
def test_a_local_job_is_stopped_and_gone_on_with(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    yaml = write_yaml(tmp_path / "c.yaml", tiny(max_steps=4000, save_strategy="no", use_cpu=True))
    command = [sys.executable, "-m", "paceline.cli.main", "launch", str(yaml), "--on", "local", "--submit"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    wait_for_step(run, 3)
    assert "running, step" in paceline("status", str(run)).out
    assert paceline("resume", str(run)).code == 2  # it runs
    assert paceline("stop", str(run)).code == 0
    assert job.wait(HANGS) == 75  # the script does not start it again
    stopped = paceline("status", str(run)).out
    assert "stopped, step" in stopped and "on request" in stopped and "checkpoint" in stopped
    (script,) = (tmp_path / "run-launch").glob("*.sh")
    script.write_text(
        script.read_text().replace(str(yaml), f"{yaml} training.max_steps={len(steps_of(run)) + 2}")
    )
    resumed = paceline("resume", str(run))
    assert resumed.code == 0, resumed.err
    assert "completed, step" in paceline("status", str(run)).out
    assert "on request" not in paceline("status", str(run)).out
    assert "step" in paceline("logs", str(run)).out and paceline("logs", str(run), "0").code == 0
    unknown = paceline("logs", str(run), "7")
    assert unknown.code == 2 and "this rank has no log here" in unknown.err and "of rank 0" in unknown.err


def test_a_run_of_train_is_found_by_its_record_and_another_users_is_not_trusted(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    yaml = write_yaml(
        tmp_path / "c.yaml", tiny(max_steps=2, save_strategy="steps", save_steps=1, use_cpu=True)
    )
    assert paceline("train", str(yaml), "--nproc", "1").code == 0
    assert "ended" in paceline("status", str(run)).out
    record = run / "launched-by.json"
    assert json.loads(record.read_text())["scheduler"] == "local"
    if os.geteuid() == 0:
        os.chown(record, 12345, -1)
        refused = paceline("resume", str(run))
        assert refused.code == 2 and "error[launch.record_owner]" in refused.err
        record.unlink()
    assert "error[schedulers.no_record]" in paceline("stop", str(run)).err


def test_a_launch_names_everything_that_is_wrong_and_writes_nothing(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    config = tiny(use_cpu=True, resume_from_checkpoint="/another/checkpoint")
    config["launch"] = {"env": {"1A": "x"}, "nodes": "1:2"}
    refused = paceline(
        "launch", str(write_yaml(tmp_path / "c.yaml", config)), "--on", "slurm", "--nodes", "2"
    )
    assert refused.code == 2
    for code in ("schedulers.variable", "schedulers.resume"):
        assert f"error[{code}]" in refused.err, refused.err
    assert "launch.nodes" in refused.err and "--nodes 2 in its place" in refused.err
    config["launch"] = {"env": {"WANDB_API_KEY": "0123456789abcdef"}}
    secret = paceline("launch", str(write_yaml(tmp_path / "c.yaml", config)), "--on", "slurm", "--nodes", "2")
    assert secret.code == 2 and "0123456789abcdef" not in secret.err + secret.out
    assert not list(tmp_path.glob("*-launch"))
    nowhere = paceline("launch", str(write_yaml(tmp_path / "d.yaml", tiny(use_cpu=True))))
    assert nowhere.code == 2 and "--on slurm" in nowhere.err


def test_the_time_comes_from_the_plan_and_a_secret_from_its_file(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    config = tiny(max_steps=100_000)
    config["launch"] = {"gpu": "H100", "gpus_per_node": 8, "secrets": {"HF_TOKEN": "/home/me/.hf-token"}}
    done = paceline("launch", str(write_yaml(tmp_path / "c.yaml", config)), "--on", "slurm", "--nodes", "2")
    assert done.code == 0, done.err
    script = (tmp_path / "run-launch/job.sbatch").read_text()
    assert "HF_TOKEN=$(cat -- /home/me/.hf-token)" in script
    assert "#SBATCH --time=" in script and '#SBATCH --gpus-per-node="8"' in script


def test_a_site_is_written_once_from_what_slurm_tells(paceline: Paceline, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sinfo").write_text("#!/bin/sh\necho 'cpu|(null)'\necho 'gpu*|gpu:h100:8(S:0-1)'\n")
    (programs / "sinfo").chmod(stat.S_IRWXU)
    env = {"PATH": f"{programs}:{os.environ['PATH']}"}
    site = tmp_path / "site.yaml"
    done = paceline("launch", str(site), "--init", "launch.account=lab", env=env)
    assert done.code == 0, done.err
    shown = paceline(
        "config", "show", str(write_yaml(tmp_path / "c.yaml", {"extends": "site.yaml"})), "--json"
    )
    launch = json.loads(shown.out)["launch"]
    assert (launch["partition"], launch["account"], launch["gpus_per_node"]) == ("gpu", "lab", 8)
    assert launch["gpu"].startswith("H100")
    again = paceline("launch", str(site), "--init", env=env)
    assert again.code == 2 and "exists already" in again.err


def test_a_person_at_a_terminal_is_asked_and_an_empty_answer_takes_the_suggestion(tmp_path: Path) -> None:
    """On a terminal of its own (a pty), which echoes what is typed, as a shell's does."""
    programs, site = tmp_path / "bin", tmp_path / "site.yaml"
    programs.mkdir()
    (programs / "sinfo").write_text("#!/bin/sh\necho 'cpu|(null)'\necho 'gpu*|gpu:h100:8(S:0-1)'\n")
    (programs / "sinfo").chmod(stat.S_IRWXU)
    argv = [sys.executable, "-m", "paceline.cli.main", "launch", str(site), "--init", "launch.account=lab"]
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    seen = ""
    # partition, quality of service, accelerators, their name, interface; the account was given
    for question, typed in (
        ("Partition (cpu, gpu) [gpu]", ""),
        ("Quality of service", "night"),
        ("Accelerators of a node; 0: none [8]", "4"),
        ("Their name", ""),
        ("Network interface", "ib7"),
    ):
        while question not in seen:
            seen += os.read(ours, 4096).decode()
        assert "Account" not in seen
        os.write(ours, f"{typed}\n".encode())
    assert process.wait(240) == 0, seen
    os.close(ours)
    launch = YAML(typ="safe").load(site)["launch"]
    assert launch.pop("gpu").startswith("H100")
    wanted = {"partition": "gpu", "account": "lab", "qos": "night", "gpus_per_node": 4, "interface": "ib7"}
    assert launch == wanted


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachinesApart]:
    with MachinesApart(tmp_path_factory.mktemp("apart") / "m") as machines:
        yield machines


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.skipif(bool(machines_apart.missing()), reason=machines_apart.missing() or "it is there")
class TestMachinesApart:
    @pytest.mark.parametrize(
        ("on", "more", "program"),
        [
            ("ssh", [], "ssh"),
            ("mpi", [], "mpirun"),
            ("mpi", ["launch.mpi=mpich"], "mpiexec.hydra"),
        ],
        ids=["ssh", "openmpi", "mpich"],
    )
    def test_two_machines_train_one_run_stop_and_go_on(
        self, apart: MachinesApart, tiny: Tiny, tmp_path: Path, on: str, more: list[str], program: str
    ) -> None:
        if why := machines_apart.missing(program):
            pytest.skip(why)
        run, hosts = tmp_path / "run", tmp_path / "hosts"
        hosts.write_text("".join(f"{host} slots=2\n" for host in apart.hosts))
        config = tiny(max_steps=100_000, save_strategy="no", use_cpu=True)
        config["launch"] = {"hostfile": str(hosts)}
        yaml = write_yaml(tmp_path / "c.yaml", config)

        def paceline(*arguments: str) -> Run:
            argv = [sys.executable, "-m", "paceline.cli.main", *arguments]
            return run_process(argv, HANGS, apart.environ, tmp_path)

        done = paceline("launch", str(yaml), "--on", on, "--nodes", "2", *more)
        assert done.code == 0, done.err
        script = done.out.strip()
        job = subprocess.Popen([script], env=apart.environ, cwd=tmp_path)
        wait_for_step(run, 3)
        record = json.loads((run / "launched-by.json").read_text())
        assert (record["scheduler"], record["host"]) == (on, "node0")
        assert paceline("stop", str(run)).code == 0  # from another machine
        assert job.wait(HANGS) == 75
        assert "stopped, step" in paceline("status", str(run)).out
        again = subprocess.Popen([script], env=apart.environ, cwd=tmp_path)
        wait_for_step(run, len(steps_of(run)) + 2)
        again.terminate()
        assert again.wait(HANGS) == 75
        steps = [step.step for step in steps_of(run)]
        assert steps == list(range(1, len(steps) + 1))  # it went on where it had stopped

    def test_a_killed_launcher_ends_the_other_machine_and_starts_again(
        self, apart: MachinesApart, tiny: Tiny, tmp_path: Path
    ) -> None:
        run, hosts = tmp_path / "run", tmp_path / "hosts"
        hosts.write_text("".join(f"{host} slots=2\n" for host in apart.hosts))
        config = tiny(max_steps=600, save_strategy="steps", save_steps=20, use_cpu=True)
        config["launch"] = {"hostfile": str(hosts), "max_restarts": 1}
        yaml = write_yaml(tmp_path / "c.yaml", config)
        argv = [sys.executable, "-m", "paceline.cli.main", "launch", str(yaml), "--on", "ssh", "--nodes", "2"]
        done = run_process(argv, HANGS, apart.environ, tmp_path)
        assert done.code == 0, done.err
        job = subprocess.Popen([done.out.strip()], env=apart.environ, cwd=tmp_path)
        wait_for_step(run, 30)
        (rank,) = [
            pid
            for pid in ranks_of(yaml)
            if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ]
        os.kill(rank, signal.SIGKILL)
        assert job.wait(HANGS) == 0
        assert max(step.step for step in steps_of(run)) == 600


def ranks_of(yaml: Path) -> list[int]:
    """The processes that train with a config, on any of the machines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"paceline.training.rank" in words and str(yaml).encode() in words:
            found.append(int(folder.name))
    return found
