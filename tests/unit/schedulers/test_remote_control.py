"""Jobs on Kubernetes and Ray are asked, stopped and started again by their own commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from remote_jobs import KUBERNETES, job_in, rendered
from support import ROOT

from paceline.cli import jobs as cli
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.launch.launch_record import LaunchedBy, job_folder, read_newest_launch, write_launch
from paceline.schedulers.control import control_of
from paceline.schedulers.write_files import write_job

#: answers as a command of the scheduler would, and writes down how it was called
STUB = """#!/bin/bash
printf '%s\\0' "$@" >> "$CALLS"; printf '\\n' >> "$CALLS"
case "$*" in
  *jsonpath*) cat "$ANSWER" ;;
  *"-o name"*) [ -s "$ANSWER" ] && echo trainjob/my-run || true ;;
  *) cat "$ANSWER" ;;
esac
exit "$(cat "$CODE")"
"""


class Commands:
    def __init__(self, folder: Path) -> None:
        self.answer, self.calls, self.code = folder / "answer", folder / "calls", folder / "code"
        for name in ("kubectl", "ray", "sky", "dstack"):
            (folder / name).write_text(STUB)
            (folder / name).chmod(0o755)
        self.environ = {
            "PATH": f"{folder}:/usr/bin:/bin",
            "ANSWER": str(self.answer),
            "CALLS": str(self.calls),
            "CODE": str(self.code),
        }
        self.say("")

    def say(self, text: str, code: int = 0) -> None:
        self.answer.write_text(text)
        self.code.write_text(str(code))
        self.calls.write_text("")

    def called(self) -> list[list[str]]:
        return [line.split("\0")[:-1] for line in self.calls.read_text().splitlines()]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Commands(folder)


def launched(system: str, folder: Path) -> LaunchedBy:
    """What a pod or node of a written job records."""
    job = job_in(folder, site={"kubernetes": KUBERNETES})
    rendering = rendered(system, job)
    write_job(job.out, rendering, "private")
    here = LaunchedBy.here({"PACELINE_SCHEDULER": system}, _run(folder))
    if system == "ray":
        return replace(here, job="raysubmit_1@http://head:8265", files=str(job.out))
    documents = list(yaml.safe_load_all(rendering.files["job.yaml"]))
    (spec,) = documents[1]["spec"]["template"]["spec"]["replicatedJobs"]
    env = spec["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    values = {one["name"]: one.get("value") for one in env}
    assert values["PACELINE_SCHEDULER"] == "kubernetes"
    return replace(here, job=values["PACELINE_JOB"], files=values["PACELINE_JOB_FOLDER"])


def _run(folder: Path) -> RunDir:
    return RunDir.at(folder / "run")


RUNNING = "Suspended=False Resumed is resumed\n"
DONE = f"{RUNNING}Complete=True JobsCompleted all of them\n"


def test_a_job_on_kubernetes(tmp_path: Path, commands: Commands) -> None:
    record = launched("kubernetes", tmp_path)
    control = control_of(record)
    where = ["trainjob", "my-run", "--namespace", "research"]

    commands.say(DONE)
    assert control.state(record, commands.environ).startswith("research/trainjob/my-run: Complete=True")
    assert [call[:5] for call in commands.called()] == [["get", *where]] * 2
    commands.say("")
    assert "is not there" in control.state(record, commands.environ)

    commands.say("deleted")
    assert "save and end" in control.stop(record, commands.environ)
    assert commands.called() == [["delete", *where, "--ignore-not-found", "--wait=false"]]

    commands.say(RUNNING)
    with pytest.raises(ConfigError, match=r"schedulers\.runs"):
        control.resume(record, commands.environ)
    for state in (DONE, ""):  # ended, or deleted by a stop
        commands.say(state)
        argv = control.resume(record, commands.environ)
        assert argv == ("kubectl", "replace", "--force", "--namespace", "research", "-k", record.files)
    with pytest.raises(ConfigError, match=r"schedulers\.files_gone"):
        control.resume(replace(record, files="/nowhere"), commands.environ)


def test_a_job_on_ray(tmp_path: Path, commands: Commands) -> None:
    record = launched("ray", tmp_path)
    control = control_of(record)
    where = ["--address", "http://head:8265", "raysubmit_1"]

    commands.say("Status for job 'raysubmit_1': FAILED\nStatus message: exit code 75")
    assert "FAILED" in control.state(record, commands.environ)
    assert commands.called() == [["job", "status", *where]]
    assert list(control.resume(record, commands.environ)) == json.loads(
        (Path(record.files) / "submit.json").read_text()
    )
    commands.say("Job 'raysubmit_1' is still running.\nStatus for job 'raysubmit_1': RUNNING")
    with pytest.raises(ConfigError, match=r"schedulers\.runs"):
        control.resume(record, commands.environ)
    commands.say("")
    control.stop(record, commands.environ)
    assert commands.called() == [["job", "stop", "--no-wait", *where]]


#: what dstack's server and SkyPilot's own classes have printed (tests/peers/test_cloud_jobs_for_real.py)
CLOUDS = json.loads((ROOT / "tests/peers/recorded/cloud_jobs.json").read_text())


def submitted(system: str, folder: Path) -> LaunchedBy:
    job = job_in(folder)
    rendering = rendered(system, job)
    write_job(job.out, rendering, "private")
    return LaunchedBy.submitted(system, rendering.name, job.run, job.out)


def test_a_run_of_dstack(tmp_path: Path, commands: Commands) -> None:
    record, answers = submitted("dstack", tmp_path), CLOUDS["dstack"]
    control = control_of(record)
    listed = ["ps", "--all", "--json"]

    for status, ended in answers["statuses"].items():
        answers["waits"]["runs"][0]["status"] = status
        commands.say(f"a line for people\n{json.dumps(answers['waits'])}")
        assert control.state(record, commands.environ) == f"job my-run: {status}"
        if ended:
            argv = control.resume(record, commands.environ)
            assert argv[-5:-1] == ("apply", "--yes", "--detach", "-f") and argv[-1].endswith(
                "task.dstack.yml"
            )
            assert "nothing to stop: job my-run" in control.stop(record, commands.environ)
            assert commands.called() == [listed] * 4
        else:
            with pytest.raises(ConfigError, match=r"schedulers\.runs"):
                control.resume(record, commands.environ)
            assert "saves and ends" in control.stop(record, commands.environ)
            assert commands.called()[-1] == ["stop", "--yes", "my-run"]
    commands.say(json.dumps(answers["ended"]))
    assert "terminated (stopped_by_user)" in control.state(record, commands.environ)
    for text in ("", "no answer", "[]", '{"runs": null}', '[x\n{"runs": ['):  # nor is it known what runs
        commands.say(text)
        for call in (control.state, control.stop, control.resume):
            with pytest.raises(PacelineError, match=r"schedulers\.refused"):
                call(record, commands.environ)
    commands.say(json.dumps({**answers["ended"], "runs": []}))
    assert "lists none" in control.state(record, commands.environ)


def test_a_job_of_skypilot(tmp_path: Path, commands: Commands) -> None:
    record, answers = submitted("skypilot", tmp_path), CLOUDS["skypilot"]
    control, jobs = control_of(record), answers["jobs"]
    last = max(jobs, key=lambda job: job["job_id"])
    assert last["job_name"] == "my-run" and last is not jobs[0]  # not the order decides

    for status, ended in answers["statuses"].items():
        last["status"] = status
        commands.say(json.dumps(jobs, indent=2))
        assert control.state(record, commands.environ) == f"job my-run: {status}"
        if ended:
            assert control.resume(record, commands.environ)[-1].endswith("task.yaml")
            assert "nothing to stop: job my-run" in control.stop(record, commands.environ)
        else:
            with pytest.raises(ConfigError, match=r"schedulers\.runs"):
                control.resume(record, commands.environ)
            assert "is cancelled" in control.stop(record, commands.environ)
            assert commands.called()[-1] == ["jobs", "cancel", "--yes", "--name", "my-run"]
    jobs.remove(last)
    commands.say("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.", code=1)
    assert "lists none" in control.state(record, commands.environ)
    assert control.resume(record, commands.environ)[-1].endswith("task.yaml")
    commands.say(json.dumps(jobs))
    assert control.state(record, commands.environ) == "job my-run: FAILED_SETUP (no driver)"


def test_a_run_on_other_machines_is_asked_by_the_files_of_its_launch(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in commands.environ.items():
        monkeypatch.setenv(name, value)
    run, record = tmp_path / "run", submitted("skypilot", tmp_path)
    (tmp_path / "run-launch").mkdir()
    write_launch(job_folder(run), record)
    jobs = CLOUDS["skypilot"]["jobs"]
    commands.say(json.dumps([{**jobs[0], "status": "RUNNING"}]))
    cli.status(str(run))
    assert "job my-run: RUNNING" in capsys.readouterr().out
    cli.stop(run)
    assert commands.called()[-1] == ["jobs", "cancel", "--yes", "--name", "my-run"]

    # By any name of the directory; the job is submitted in the folder of the first start
    commands.say(json.dumps([{**jobs[0], "status": "CANCELLED"}]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_launch(job_folder(run), replace(record, folder=str(tmp_path)))
    cli.resume(Path("../run"))
    assert Path.cwd() == tmp_path and commands.called()[-1][:2] == ["jobs", "launch"]
    assert list((tmp_path / "elsewhere").iterdir()) == []

    # Once its directory is here the newer record counts
    RunDir.at(run).root.mkdir()
    (RunDir.at(run).root / "plan.json").write_text("{}")
    own = replace(record, scheduler="local", host="another", pid=7)
    write_launch(RunDir.at(run), own)
    newest = read_newest_launch(run)
    assert newest is not None and (newest.scheduler, newest.pid) == ("local", 7)
    monkeypatch.chdir(run)
    assert read_newest_launch(Path()) == newest
    assert read_newest_launch(Path("/")) is None
    os.utime(job_folder(run).launched_by)
    os.utime(RunDir.at(run).launched_by, (1, 1))
    newest = read_newest_launch(run)
    assert newest is not None and (newest.scheduler, newest.run) == ("skypilot", record.run)


def test_a_launch_is_what_started_a_run_once_it_has_submitted_something(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in commands.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    config, run = tmp_path / "c.yaml", tmp_path / "run"
    rows = [{"text": "a b c"}] * 64
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    values = {
        "model": {"name_or_path": "org/model"},
        "data": {"train": "rows.json"},
        "training": {"output_dir": "run", "max_steps": 2, "checkpoint_url": "s3://bucket/run"},
    }
    config.write_text(json.dumps(values))
    launch = partial(cli.launch, config, on="dstack", nodes=1, gpus_per_node=0)
    idle = json.dumps({"project": "main", "runs": []})

    # Of a run that trains here, files alone take nothing over
    run.mkdir()
    own = LaunchedBy.here({}, RunDir.at(run))
    write_launch(RunDir.at(run), own)
    launch()
    assert read_newest_launch(run) == own
    RunDir.at(run).launched_by.unlink()
    launch()
    newest = read_newest_launch(run)
    assert newest is not None and newest.scheduler == "dstack"

    commands.say(idle)
    launch(submit=True)
    assert [call[0] for call in commands.called()] == ["ps", "apply"]
    active = {"run_spec": {"run_name": newest.job}, "status": "running"}
    commands.say(json.dumps({"project": "main", "runs": [active]}))
    with pytest.raises(ConfigError, match=r"schedulers\.runs"):  # dstack would stop it, and start it anew
        launch(submit=True)
    assert [call[0] for call in commands.called()] == ["ps", "ps"]
    commands.say(idle)
    launch(submit=True, out=tmp_path / "files")
    assert f"take {tmp_path / 'files'}" in capsys.readouterr().err
    cli.status(str(tmp_path / "files"))
    assert f"{run}: it has not begun" in capsys.readouterr().out

    for text in ("", "[]", json.dumps({**asdict(newest), "folder": "a\0b"})):
        job_folder(run).launched_by.write_text(text)
        with pytest.raises(ConfigError, match=r"launch\.record_damaged.*run-launch/launched-by.json"):
            read_newest_launch(run)
    write_launch(job_folder(run), replace(newest, folder="/nowhere"))
    with pytest.raises(ConfigError, match=r"launch\.record_damaged") as caught:
        cli.resume(run)
    assert "/nowhere" in caught.value.diagnostics[0].found


def test_files_of_another_user_say_nothing_about_my_run(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write next to a run must neither keep me from stopping it nor say what I submit."""
    run, record = tmp_path / "run", submitted("dstack", tmp_path)
    run.mkdir()
    (tmp_path / "run-launch").mkdir()
    own = LaunchedBy.here({}, RunDir.at(run))
    write_launch(RunDir.at(run), own)
    write_launch(job_folder(run), record)
    assert read_newest_launch(run) == record
    files = (job_folder(run).launched_by, job_in(tmp_path).out / "submit.json")
    me, theirs = os.geteuid(), {file.stat().st_ino for file in files}

    def of_another(real: Callable[..., os.stat_result]) -> Callable[..., Any]:
        def stat(file: Any, **more: Any) -> Any:
            info = real(file, **more)
            if info.st_ino not in theirs:
                return info
            facts = {name: getattr(info, name) for name in ("st_mtime_ns", "st_mode", "st_size", "st_ino")}
            return SimpleNamespace(**facts, st_uid=me + 1)

        return stat

    monkeypatch.setattr(Path, "stat", of_another(Path.stat))
    monkeypatch.setattr(os, "fstat", of_another(os.fstat))
    assert read_newest_launch(run) == own
    commands.say(json.dumps({"project": "main", "runs": []}))
    with pytest.raises(ConfigError, match=r"launch\.record_owner.*submit\.json"):
        control_of(record).resume(record, commands.environ)
