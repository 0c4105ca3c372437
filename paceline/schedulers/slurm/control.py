"""A Slurm job that runs: its state, its stop and its next start, by Slurm's own commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ConfigError, PacelineError
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of
from paceline.schedulers.slurm.render import SCRIPT

#: while one of these a job may still start or write
_WAITING = (
    "PENDING",
    "RUNNING",
    "COMPLETING",
    "CONFIGURING",
    "SUSPENDED",
    "REQUEUED",
    "STAGE_OUT",
    "SIGNALING",
)


class SlurmControl(JobControl):
    """By ``scontrol`` and ``scancel``."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return state, reason, nodes and times."""
        facts = _facts(launched.job, environ)
        if facts is None:
            return f"job {launched.job}: Slurm has forgotten it (sacct -j {launched.job} may tell more)"
        reason = "" if facts.reason == "None" else f" ({facts.reason})"
        times = f"ran {facts.run_time} of {facts.time_limit}, {facts.restarts} restarts"
        return f"job {launched.job}: {facts.state}{reason} on {facts.nodes}, {times}"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Keep Slurm from a requeue, and signal the steps; the script itself gets no signal."""
        job = launched.job
        facts = _facts(job, environ)
        if facts is None or not facts.state.startswith(_WAITING):
            return f"job {job} has ended already"
        answer_of(("scontrol", "update", f"JobId={job}", "Requeue=0"), environ)
        if facts.state == "RUNNING":
            answer_of(("scancel", "--signal=TERM", job), environ)
            return f"job {job} saves and ends; Slurm does not start it again"
        answer_of(("scancel", job), environ)
        return f"job {job}, which was {facts.state}, is cancelled"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return ``sbatch`` of the job's script."""
        facts = _facts(launched.job, environ)
        if facts is not None and facts.state.startswith(_WAITING):
            raise ConfigError(codes.SCHEDULERS_RUNS("launched-by.json", f"job {launched.job}: {facts.state}"))
        script = Path(launched.files or ".") / SCRIPT
        if not launched.files or not script.is_file():
            raise ConfigError(codes.SCHEDULERS_FILES_GONE(str(script), scheduler="slurm"))
        return ("sbatch", str(script))

    def submitted(self, printed: str) -> str | None:
        """Return the job's number."""
        match = re.search(r"Submitted batch job (\d+)", printed)
        return match[1] if match else None


@dataclass(frozen=True)
class JobFacts:
    """What ``scontrol show job`` says of a job, in its words."""

    state: str
    reason: str
    nodes: str
    run_time: str
    time_limit: str
    restarts: str


def _facts(job: str, environ: Mapping[str, str]) -> JobFacts | None:
    """Return the facts of a job; None once Slurm has forgotten it."""
    try:
        shown = answer_of(("scontrol", "--oneliner", "show", "job", job), environ)
    except PacelineError as error:
        if "Invalid job id" in error.diagnostics[0].what:
            return None
        raise
    names = ("JobState", "Reason", "NodeList", "RunTime", "TimeLimit", "Restarts")
    values = (re.search(rf"(?:^| ){name}=(\S*)", shown) for name in names)
    return JobFacts(*(match[1] if match else "" for match in values))


CONTROL = SlurmControl()
