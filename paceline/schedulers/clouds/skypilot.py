"""A managed job of SkyPilot: one task file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.launch.launch_record import LaunchedBy
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.launch.supervision.exit_codes import AFTER, After
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

FILE = "task.yaml"
_FIRST = """"$(printf '%s\\n' "$SKYPILOT_NODE_IPS" | head -n 1)\""""
SKYPILOT = Cloud("SkyPilot", "skypilot", '"$SKYPILOT_NODE_RANK"', _FIRST, "~/paceline", restarts=True)
_NOTES = (
    "SkyPilot restarts after every failure, up to launch.max_restarts; a start that Paceline refuses"
    " counts too",
)


def skypilot_job(job: ClusterJob) -> Rendering:
    """Return the task file. Raises ConfigError with all that SkyPilot could not hold."""
    texts = shipped_config(job.config, {})
    if wrong := [*findings(job, SKYPILOT), *_own_findings(job)]:
        raise ConfigError(*wrong)
    options = job.site.skypilot
    secrets = [*secret_names(job), *((STORE_SECRET,) if job.signs else ())]
    files = {f"{SKYPILOT.folder}/{name}": str(job.config.parent / name) for name in texts}
    task: JsonObject = {
        "name": dns_name(job.name),
        "num_nodes": job.nodes,
        "resources": _resources(job),
        "file_mounts": {**files, **{target: source for source, target in mounts(job)}},
        "envs": variables(job, SKYPILOT),
        # Without a value here: `--secret NAME` takes it from the environment of the one who submits
        "secrets": dict.fromkeys(secrets),
        **({"setup": "\n".join(options.setup)} if options.setup else {}),
        "run": node_script(job, SKYPILOT),
    }
    # Without it the command follows the log until the job has ended
    launch = ["sky", "jobs", "launch", "--yes", "--detach-run", "--name", dns_name(job.name)]
    for name in secrets:
        launch += ["--secret", name]
    launch.append(str(job.out / FILE))
    submit = with_secret(STORE_SECRET, job.out / SECRET_NAME, launch) if job.signs else tuple(launch)
    written = {FILE: documents(task), **submit_file(submit)}
    return Rendering(written, (submit,), _NOTES, store_secret=job.signs, name=dns_name(job.name))


def _resources(job: ClusterJob) -> JsonObject:
    site, options = job.site, job.site.skypilot
    recovery: JsonObject = {
        "max_restarts_on_errors": job.max_restarts,
        "recover_on_exit_codes": sorted(int(code) for code, after in AFTER.items() if after is After.RESUME),
    }
    resources: JsonObject = {"job_recovery": recovery}
    if job.gpus_per_node:
        resources["accelerators"] = {str(site.gpu): job.gpus_per_node}
    if site.cpus_per_node:
        resources["cpus"] = f"{site.cpus_per_node}+"
    if site.memory:
        resources["memory"] = f"{gigabytes(site.memory)}+"
    if site.image:
        resources["image_id"] = f"docker:{site.image}"
    if options.infra:
        resources["infra"] = options.infra
    if options.use_spot:
        resources["use_spot"] = True
    return resources


def _own_findings(job: ClusterJob) -> Iterator[Diagnostic]:
    def refused(where: str, value: str, reason: str, hint: str) -> Diagnostic:
        return codes.SCHEDULERS_VALUE(where, value, scheduler=SKYPILOT.name, reason=reason, hint=hint)

    if job.gpus_per_node and not job.site.gpu:
        yield refused("launch.gpu", "not given", "it rents accelerators by name", "launch.gpu: H100")
    if "$" in "".join((str(job.config.parent), *job.site.mounts)):
        reason = "it reads $ in paths as a variable"
        yield refused("launch.mounts, CONFIG", str(job.config.parent), reason, "paths without a $")
    for name, source in secret_names(job).items():
        if source != name:
            reason = "a value comes from a file on the nodes, or from the variable of the one who submits"
            hint = f"{name}: /a/file/on/the/nodes, or {name}: {name}"
            yield refused(f"launch.secrets.{name}", source, reason, hint)


#: SkyPilot stops its controller when no job is left, and then lists none (``ClusterNotUpError``).
_IDLE = "No in-progress managed jobs"
_ENDED = ("SUCCEEDED", "CANCELLED", "FAILED")  # the last begins the names of several


class SkypilotControl(CloudControl):
    """By ``sky jobs queue`` and ``sky jobs cancel``."""

    cloud = SKYPILOT

    def newest(self, name: str, environ: Mapping[str, str]) -> ListedJob | None:
        """Return the managed job of this name with the largest number."""
        try:
            listed = listed_json(("sky", "jobs", "queue", "--all", "--output", "json"), environ)
        except PacelineError as error:
            if _IDLE not in error.diagnostics[0].what:
                raise
            return None
        jobs = map(as_object, listed)
        mine = [job for job in jobs if job.get("job_name") == name and isinstance(job.get("job_id"), int)]
        if not mine:
            return None
        last = max(mine, key=lambda job: int(str(job["job_id"])))
        status = str(last.get("status"))
        reason = str(last.get("failure_reason") or last.get("details") or "")
        return ListedJob(status, reason, status.startswith(_ENDED))

    def stop(self, launched: LaunchedBy, environ: Mapping[str, str]) -> str:
        """Cancel the managed job, whose nodes SkyPilot then gives back."""
        listed = self.newest(launched.job, environ)
        if listed is None or listed.ended:
            return f"nothing to stop: {self.state(launched, environ)}"
        answer_of(("sky", "jobs", "cancel", "--yes", "--name", launched.job), environ)
        return f"job {launched.job} is cancelled; it goes on from its newest checkpoint"


CONTROL = SkypilotControl()
