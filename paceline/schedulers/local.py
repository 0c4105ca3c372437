"""This machine as a scheduler, and processes that no scheduler knows."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl
from paceline.schedulers.job import ClusterJob, Rendering
from paceline.schedulers.script_job import SCRIPT, script_job


def local_job(job: ClusterJob) -> Rendering:
    """Return the script of a job on this machine. Raises ConfigError for several nodes."""
    if job.nodes > 1:
        reason = "it has one node"
        hint = "--on ssh with launch.hostfile for machines without a scheduler"
        raise ConfigError(
            codes.SCHEDULERS_VALUE(
                "launch.nnodes", str(job.nodes), scheduler="this machine", reason=reason, hint=hint
            )
        )
    return script_job(job, "local", job.command(), {})


class ProcessControl(JobControl):
    """By signals to the first node's launcher; several nodes see the request in the run's directory."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return whether the launcher lives."""
        if launched.is_alive_here:
            return f"process {launched.pid} on {launched.host}: running"
        if launched.is_elsewhere:
            return f"process {launched.pid} on {launched.host}: not visible from this machine"
        return f"process {launched.pid} on {launched.host}: ended"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Send SIGTERM; on another machine the launcher itself sees the request within a second."""
        if launched.is_alive_here:
            os.kill(launched.pid, signal.SIGTERM)
            return f"process {launched.pid} saves and ends"
        if launched.is_elsewhere:
            return f"process {launched.pid} on {launched.host} saves and ends once it sees the request"
        return f"process {launched.pid} has ended already"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the job's script, or ``paceline train`` of the run's own config."""
        if launched.is_alive_here:
            raise ConfigError(codes.SCHEDULERS_RUNS("launched-by.json", f"process {launched.pid}"))
        if launched.is_elsewhere:
            hint = f"on {launched.host}: paceline resume RUN"
            raise ConfigError(codes.SCHEDULERS_ELSEWHERE("launched-by.json", launched.host, hint=hint))
        if not launched.files:
            config = str(Path(launched.run) / "config.json")
            return (sys.executable, "-m", "paceline.cli.main", "train", config, "--resume", "latest")
        script = Path(launched.files) / SCRIPT
        if not script.is_file():
            raise ConfigError(
                codes.SCHEDULERS_FILES_GONE(str(script), scheduler=shlex.quote(launched.scheduler))
            )
        return (str(script),)


CONTROL = ProcessControl()
