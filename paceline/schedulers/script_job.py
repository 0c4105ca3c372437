"""Jobs without a scheduler: a script that runs one command, and starts it again after failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.launch import launch_record
from paceline.launch.supervision.exit_policy import After
from paceline.schedulers import codes
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
