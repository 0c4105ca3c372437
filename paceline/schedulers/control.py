"""Jobs that run: asked, stopped and started again through their scheduler."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import as_list, parse_json
from paceline.core.plugins.tables import load_attr
from paceline.launch.launch_record import LaunchedBy, read_trusted
from paceline.schedulers import codes


class JobControl(Protocol):
    """What a scheduler can be asked about a job that it runs. ``environ``: of its commands.

    Each raises ConfigError or PacelineError if its command is not there or fails.
    """

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return the job's state in a line of words."""
        ...

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Make the job save and end, and not start again; return what was done."""
        ...

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return argv that goes on with a job that has ended. Raises ConfigError while it runs."""
        ...

    def submitted(self, printed: str) -> str | None:
        """Return the new job's name in what ``resume``'s command prints; None where the name stays."""
        return None


#: scheduler → its ``JobControl``
CONTROLS: Mapping[str, str] = {
    "slurm": "paceline.schedulers.slurm.job:CONTROL",
    "kubernetes": "paceline.schedulers.kubernetes.job:CONTROL",
    "ray": "paceline.schedulers.ray.job:CONTROL",
    "skypilot": "paceline.schedulers.clouds.skypilot:CONTROL",
    "dstack": "paceline.schedulers.clouds.dstack:CONTROL",
    "local": "paceline.schedulers.script_job:CONTROL",
    "mpi": "paceline.schedulers.script_job:CONTROL",
    "ssh": "paceline.schedulers.script_job:CONTROL",
}


def control_of(launched: LaunchedBy) -> JobControl:
    """Return the control of a run's scheduler. Raises ConfigError for a scheduler that is not known."""
    if launched.scheduler not in CONTROLS:
        hint = f"one of: {', '.join(CONTROLS)}; use the scheduler's own commands"
        raise ConfigError(codes.SCHEDULERS_UNKNOWN("launched-by.json", launched.scheduler, hint=hint))
    return job_control(launched.scheduler)


def job_control(scheduler: str) -> JobControl:
    """Return the control of a scheduler's jobs."""
    control: JobControl = load_attr(CONTROLS[scheduler])
    return control


#: Next to a job's files, where a scheduler keeps none: argv that submits them.
SUBMITTED = "submit.json"


def submit_file(submit: Sequence[str]) -> dict[str, str]:
    """Return the file from which ``submit_again`` reads."""
    return {SUBMITTED: json.dumps(submit, indent=1) + "\n"}


def submit_again(launched: LaunchedBy) -> tuple[str, ...]:
    """Return argv that submitted a job's files. Raises ConfigError where they are gone."""
    file = Path(launched.files or ".") / SUBMITTED
    if not launched.files or not file.is_file():
        raise ConfigError(codes.SCHEDULERS_FILES_GONE(str(file), scheduler=launched.scheduler))
    return tuple(str(word) for word in as_list(parse_json(read_trusted(file).encode())))


def answer_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Run a scheduler's command and return what it prints. Raises PacelineError if it fails."""
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if program is None:
        raise ConfigError(codes.SCHEDULERS_PROGRAM("command line", argv[0], name=argv[0]))
    done = subprocess.run(
        [program, *argv[1:]],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}")[-600:]
        hint = "correct what it names; nothing else was done"
        raise PacelineError(codes.SCHEDULERS_REFUSED(shlex.join(argv), hint=hint, reason=reason))
    return done.stdout
