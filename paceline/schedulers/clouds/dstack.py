"""A task of dstack: its configuration file, and the script that its nodes run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.launch.launch_record import LaunchedBy
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.schedulers import codes
from paceline.schedulers.clouds.job_control import CloudControl, ListedJob, listed_json, variables
from paceline.schedulers.clouds.node_script import (
    Cloud,
    findings,
    gigabytes,
    mounts,
    node_script,
    secret_names,
)
from paceline.schedulers.control import answer_of, submit_file
from paceline.schedulers.job import SECRET_NAME, ClusterJob, Rendering, dns_name
from paceline.schedulers.templates import documents
from paceline.schedulers.with_secret import with_secret
from paceline.schedulers.write_files import shipped_config

FILE, SCRIPT = "task.dstack.yml", "node.sh"
DSTACK = Cloud(
    "dstack", "dstack", '"$DSTACK_NODE_RANK"', '"$DSTACK_MASTER_NODE_IP"', "/paceline", restarts=False
)
_LEAVE_SECONDS = 15
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NOTES = (
    "dstack restarts after an interruption alone: after a failure the nodes' launchers start the run again,"
    " up to launch.max_restarts",
)


def dstack_job(job: ClusterJob) -> Rendering:
    """Return the task. Raises ConfigError with all that dstack could not hold."""
    texts = shipped_config(job.config, {})
    if wrong := [*findings(job, DSTACK), *_own_findings(job)]:
        raise ConfigError(*wrong)
    options = job.site.dstack
    files = [(SCRIPT, SCRIPT), *((str(job.config.parent / name), name) for name in texts)]
    task: JsonObject = {
        "type": "task",
        "name": dns_name(job.name),
        "nodes": job.nodes,
        **({"image": job.site.image} if job.site.image else {}),
        "env": _env(job),
        # A file, since dstack fills in what looks like its variables in commands
        "files": [{"local_path": local, "path": f"{DSTACK.folder}/{name}"} for local, name in files],
        "commands": [f"exec bash {DSTACK.folder}/{SCRIPT}"],
        "resources": _resources(job),
        "volumes": [
            {"instance_path" if source.startswith("/") else "name": source, "path": target}
            for source, target in mounts(job)
        ],
        "retry": {"on_events": ["no-capacity", "interruption"], "duration": "30d"},
        "stop_duration": job.site.save_seconds + _LEAVE_SECONDS,
        "spot_policy": "spot" if options.spot else "on-demand",
    }
    if job.fixed_time_limit:
        task["max_duration"] = job.fixed_time_limit
    if options.backends:
        task["backends"] = list(options.backends)
    if options.fleets:
        task["fleets"] = list(options.fleets)
    # dstack refuses a file that does not lie below the current folder
    here = ["sh", "-c", 'cd -- "$0" && exec "$@"', str(job.out)]
    apply = [*here, "dstack", "apply", "--yes", "--detach", "-f", FILE]
    submit = with_secret(STORE_SECRET, job.out / SECRET_NAME, apply) if job.signs else tuple(apply)
    written = {FILE: documents(task), SCRIPT: node_script(job, DSTACK), **submit_file(submit)}
    return Rendering(written, (submit,), _NOTES, store_secret=job.signs, name=dns_name(job.name))


def _env(job: ClusterJob) -> JsonObject:
    """Return the variables; dstack reads ``${{ … }}`` in values, and ``$$`` as a dollar sign."""
    plain: dict[str, Json] = {
        name: value.replace("$", "$$") for name, value in variables(job, DSTACK).items()
    }
    held: dict[str, Json] = {name: f"${{{{ secrets.{key} }}}}" for name, key in secret_names(job).items()}
    # from the environment of the one who submits
    taken: dict[str, Json] = {STORE_SECRET: {"key": STORE_SECRET}} if job.signs else {}
    return {**plain, **held, **taken}


def _resources(job: ClusterJob) -> JsonObject:
    site = job.site
    resources: JsonObject = {}
    if job.gpus_per_node:
        resources["gpu"] = {**({"name": site.gpu} if site.gpu else {}), "count": job.gpus_per_node}
    if site.cpus_per_node:
        resources["cpu"] = f"{site.cpus_per_node}.."
    if site.memory:
        resources["memory"] = f"{gigabytes(site.memory)}GB.."
    return resources


def _own_findings(job: ClusterJob) -> Iterator[Diagnostic]:
    for name, source in secret_names(job).items():
        if not _NAME.fullmatch(source):
            reason = "a value comes from a file on the nodes, or from a secret of dstack"
            hint = f"{name}: /a/file/on/the/nodes, or {name}: NAME as `dstack secret list` shows"
            yield codes.SCHEDULERS_VALUE(
                f"launch.secrets.{name}", source, scheduler=DSTACK.name, reason=reason, hint=hint
            )


_ENDED = ("terminated", "failed", "done")


class DstackControl(CloudControl):
    """By ``dstack ps`` and ``dstack stop``."""

    cloud = DSTACK

    def newest(self, name: str, environ: Mapping[str, str]) -> ListedJob | None:
        """Return the run of this name; dstack keeps the newest alone."""
        for run in map(as_object, listed_json(("dstack", "ps", "--all", "--json"), environ, "runs")):
            if as_object(run.get("run_spec")).get("run_name") == name:
                status, reason = str(run.get("status")), run.get("termination_reason") or run.get("error")
                return ListedJob(status, str(reason or ""), status in _ENDED)
        return None

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Stop the run: its nodes get SIGTERM and ``stop_duration`` seconds to save."""
        listed = self.newest(launched.job, environ)
        if listed is None or listed.ended:
            return f"nothing to stop: {self.state(launched, environ)}"
        answer_of(("dstack", "stop", "--yes", launched.job), environ)
        return f"job {launched.job} saves and ends; dstack does not start it again"


CONTROL = DstackControl()
