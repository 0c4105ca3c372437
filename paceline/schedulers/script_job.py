"""Jobs as a script that runs one command and starts it again after failures: of ssh, MPI and this machine."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.launch import launch_record
from paceline.launch.launch_record import LaunchedBy, check_owner
from paceline.launch.supervision.exit_codes import After
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl
from paceline.schedulers.job import SECRET_NAME, ClusterJob, Rendering
from paceline.schedulers.templates import SHARED, codes_after, environment

SCRIPT = "run.sh"


@dataclass(frozen=True)
class RemoteNode:
    """A node: ``host`` for ssh, and ``command``, one word of a local shell that the remote shell reads."""

    host: str
    command: str


def script_job(
    job: ClusterJob,
    scheduler: str,
    command: Sequence[str],
    more: Mapping[str, str],
    nodes: Sequence[RemoteNode] = (),
    *,
    through_run: bool = False,
) -> Rendering:
    """Return the script of a job: it runs ``command``, or starts ``nodes`` by ssh.

    ``more``: variables beside the site's; ``through_run``: a signal becomes a request in the run's directory,
    since ``command`` would end its processes before they have saved. Raises ConfigError for an image or a
    sweep.
    """
    if job.site.image:
        reason, hint = "its command starts no containers", "leave it out, or start paceline launch inside one"
        raise ConfigError(
            codes.SCHEDULERS_VALUE(
                "launch.image", job.site.image, scheduler=scheduler, reason=reason, hint=hint
            )
        )
    if job.tasks:
        reason, hint = "arrays of runs are Slurm's", "paceline sweep, or launch each by itself"
        raise ConfigError(
            codes.SCHEDULERS_VALUE(
                "--sweep", f"{len(job.tasks)} runs", scheduler=scheduler, reason=reason, hint=hint
            )
        )
    template = "nodes.sh.jinja" if nodes else "run.sh.jinja"
    text = (
        environment(SHARED)
        .get_template(template)
        .render(
            job=job,
            nodes=nodes,
            through_run=through_run,
            command=command,
            variables=variables_of(job, scheduler) | dict(more),
            done=codes_after(After.DONE),
            fail=codes_after(After.FAIL),
            resume=codes_after(After.RESUME),
        )
    )
    path = str(job.out / SCRIPT)
    return Rendering(
        {SCRIPT: text},
        ((path,),),
        executable=frozenset({SCRIPT}),
        store_secret=job.signs,
        foreground=True,
    )


def variables_of(job: ClusterJob, scheduler: str) -> dict[str, str]:
    """Return the variables of the ranks, and those by which the run records what has started it."""
    variables = {
        launch_record.SCHEDULER: scheduler,
        launch_record.FILES: str(job.out),
        **job.env,
        **job.interfaces,
    }
    if job.signs:
        variables["PACELINE_STORE_SECRET_FILE"] = str(job.out / SECRET_NAME)
    return variables


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
        check_owner(script)
        return (str(script),)


CONTROL = ProcessControl()
