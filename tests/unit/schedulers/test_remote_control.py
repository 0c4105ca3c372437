"""Jobs on Kubernetes and Ray are asked, stopped and started again by their own commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from remote_jobs import KUBERNETES, job_in, rendered

from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch.launch_record import LaunchedBy
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
"""


class Commands:
    def __init__(self, folder: Path) -> None:
        self.answer, self.calls = folder / "answer", folder / "calls"
        for name in ("kubectl", "ray"):
            (folder / name).write_text(STUB)
            (folder / name).chmod(0o755)
        self.environ = {
            "PATH": f"{folder}:/usr/bin:/bin",
            "ANSWER": str(self.answer),
            "CALLS": str(self.calls),
        }
        self.say("")

    def say(self, text: str) -> None:
        self.answer.write_text(text)
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


@pytest.mark.parametrize("system", ["skypilot", "dstack"])
def test_other_services_are_named_with_what_to_use(system: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the scheduler's own commands"):
        control_of(LaunchedBy.here({"PACELINE_SCHEDULER": system}, _run(tmp_path)))
