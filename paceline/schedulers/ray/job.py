"""A job on a Ray cluster: the folder that ``ray job submit`` ships; its state, stop and next start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.launch.launch_record import LaunchedBy
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of, submit_again, submit_file
from paceline.schedulers.job import ClusterJob, Rendering
from paceline.schedulers.ray.task import FILE, UNPACKED, RayTask
from paceline.schedulers.write_files import shipped_config

_RUNNING = ("PENDING", "RUNNING", "is still running", "is pending")


class RayControl(JobControl):
    """A job's name is ``SUBMISSION@ADDRESS``, the address that of the cluster's dashboard."""

    def state(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Return what ``ray job status`` says."""
        name, address = _parts(launched.job)
        lines = answer_of(("ray", "job", "status", "--address", address, name), environ).splitlines()
        facts = [line.strip() for line in lines if name in line or "tatus" in line]
        return f"job {name}: {'; '.join(facts)}"

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Stop the driver, which tells every node to save."""
        name, address = _parts(launched.job)
        answer_of(("ray", "job", "stop", "--no-wait", "--address", address, name), environ)
        return f"job {name} saves and ends; its driver starts nothing again"

    def resume(self, launched: LaunchedBy, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command that submitted the job."""
        state = self.state(launched, environ)
        if any(word in state for word in _RUNNING):
            raise ConfigError(codes.SCHEDULERS_RUNS("launched-by.json", state))
        return submit_again(launched)


def _parts(job: str) -> tuple[str, str]:
    name, _, address = job.partition("@")
    return name, address


CONTROL = RayControl()


#: Below the job's folder: all in it is uploaded to the cluster.
FOLDER = "ray"
_LEAVE_SECONDS = 15
_NOTES = (
    "the run's directory must be at the same path on every node, on a shared disk or with"
    " training.checkpoint_url",
)


def ray_job(job: ClusterJob) -> Rendering:
    """Return the folder and the command. Raises ConfigError with all that Ray could not hold."""
    texts = shipped_config(job.config, {})
    if wrong := list(_findings(job)):
        raise ConfigError(*wrong)
    grace = job.site.save_seconds + _LEAVE_SECONDS
    here = replace(job, program=(), overrides=(*job.overrides, f"training.output_dir={job.run}"))
    task = RayTask(
        nodes=job.nodes,
        nproc=job.nproc,
        gpus=job.gpus_per_node,
        cpus=job.site.cpus_per_node or 1,
        # The driver fills in where Ray has unpacked the folder
        arguments=here.command(f"{UNPACKED}/{job.config.name}"),
        folder=str(job.folder),
        run=job.run,
        files=str(job.out),
        address=job.site.ray.address,
        port=job.site.master_port,
        env=dict(job.env),
        secrets=dict(job.secrets),
        signs=job.signs,
        max_restarts=job.max_restarts,
        grace=grace,
        placement_timeout=job.site.ray.placement_timeout,
    )
    files = {f"{FOLDER}/{name}": text for name, text in {**texts, FILE: task.to_json()}.items()}
    # `ray job stop` otherwise kills after 3 s, and lines of a log that resemble others are left out
    variables = {
        "RAY_JOB_STOP_WAIT_TIME_S": str(grace + _LEAVE_SECONDS),
        "RAY_COLOR_PREFIX": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    submit = (
        *("ray", "job", "submit", "--no-wait", "--address", job.site.ray.address),
        *("--working-dir", str(job.out / FOLDER), "--runtime-env-json", json.dumps({"env_vars": variables})),
        *("--metadata-json", json.dumps({"paceline": job.name})),
        *("--", "python", "-m", "paceline.schedulers.ray.driver", FILE),
    )
    return Rendering({**files, **submit_file(submit)}, (submit,), _NOTES)


def _findings(job: ClusterJob) -> Iterator[Diagnostic]:
    def refused(where: str, value: str, reason: str, hint: str) -> Diagnostic:
        return codes.SCHEDULERS_VALUE(where, value, scheduler="Ray", reason=reason, hint=hint)

    if job.tasks:
        yield refused(
            "sweep", f"{len(job.tasks)} runs", "arrays of runs are Slurm's", "launch each by itself"
        )
    if job.site.modules:
        reason = "the cluster's nodes run already"
        yield refused("launch.modules", ", ".join(job.site.modules), reason, "load them where Ray is started")
    if job.config.name == FILE:
        yield refused("CONFIG", FILE, "the driver's own file has this name", "rename the config")
    for name, source in job.secrets.items():
        if not source.startswith("/"):
            reason = "a value comes from a file on the nodes"
            yield refused(f"launch.secrets.{name}", source, reason, f"{name}: /a/file/on/the/nodes")
