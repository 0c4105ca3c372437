"""A Slurm job: one batch script, which requeues itself after a stop that saved; its state, stop and start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.launch.launch_record import LaunchedBy, check_owner
from paceline.launch.supervision.exit_codes import After
from paceline.schedulers import codes
from paceline.schedulers.control import JobControl, answer_of
from paceline.schedulers.job import SECRET_NAME, ClusterJob, Rendering
from paceline.schedulers.templates import codes_after, environment

SCRIPT = "job.sbatch"
#: sbatch reads a word of a #SBATCH line into a buffer of this many bytes
_LONGEST = 8000
_EARLY = 60  # seconds that the signal of --signal may come before its time
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def slurm_job(job: ClusterJob) -> Rendering:
    """Return the batch script. Raises ConfigError for values that Slurm cannot hold, all at once."""
    options = batch_options(job)
    wrong = [finding for name, value in options if (finding := _unholdable(name, value))]
    wrong += [*_container_findings(job), *_time_findings(job)]
    if wrong:
        raise ConfigError(*wrong)
    template = environment(Path(__file__).parent).get_template("job.sbatch.jinja")
    text = template.render(
        job=job,
        options=[(name, quoted(value)) for name, value in options],
        command=[*job.command(), "--master-port"],
        container=_container_options(job),
        inside=_inside(job),
        secret=job.out / SECRET_NAME if job.signs else "",
        done=codes_after(After.DONE),
        fail=codes_after(After.FAIL),
        resume=codes_after(After.RESUME),
    )
    return Rendering(
        {SCRIPT: text},
        (("sbatch", str(job.out / SCRIPT)),),
        _notes(job),
        store_secret=job.signs,
    )


def batch_options(job: ClusterJob) -> list[tuple[str, str | None]]:
    """Return the options of sbatch with their values (None: the option has none)."""
    site = job.site
    log = f"{str(job.out).replace('%', '%%')}/%x-{'%A_%a' if job.tasks else '%j'}.out"
    limit = None if job.time_limit is None else -(-job.time_limit // 60)
    given: list[tuple[str, str | int | None]] = [
        ("job-name", job.name),
        ("nodes", job.nodes),
        ("ntasks-per-node", 1),
        ("gpus-per-node", job.gpus_per_node or None),
        ("cpus-per-task", site.cpus_per_node),
        ("mem", site.memory),
        ("time", limit),
        ("partition", site.partition),
        ("account", site.account),
        ("qos", site.qos),
        ("constraint", site.constraint),
        ("reservation", site.reservation),
        ("array", _array(job)),
        ("chdir", str(job.folder)),
        ("output", log),
        ("open-mode", "append"),
        # Without "B:" the steps alone get it: the script goes on, and requeues
        ("signal", f"TERM@{site.save_seconds}"),
    ]
    options = [(name, str(value)) for name, value in given if value is not None]
    plain: list[tuple[str, str | None]] = [
        ("requeue", None),
        *([("exclusive", None)] if site.exclusive else []),
    ]
    return [*options, *plain, *map(_further, site.sbatch_options)]


def _time_findings(job: ClusterJob) -> list[Diagnostic]:
    """Refuse a time that is over, for the ranks, as soon as it begins: the job would requeue for ever."""
    save, limit = job.site.save_seconds, job.time_limit
    if limit is None or limit > save + _EARLY:
        return []
    reason = f"its ranks save {save} s before the end, and Slurm may say so a minute earlier"
    hint = f"more than {save + _EARLY} s, or a smaller launch.save_seconds"
    return [
        codes.SCHEDULERS_VALUE("launch.time_limit", f"{limit} s", scheduler="Slurm", reason=reason, hint=hint)
    ]


def quoted(value: str | None) -> str:
    """Return ``=VALUE`` as a line of #SBATCH holds it; empty without a value."""
    if value is None:
        return ""
    return '="' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _further(option: str) -> tuple[str, str | None]:
    name, equals, value = option.strip().removeprefix("--").partition("=")
    return name, value if equals else None


def _array(job: ClusterJob) -> str | None:
    if not job.tasks:
        return None
    limit = f"%{job.site.array_limit}" if job.site.array_limit else ""
    return f"0-{len(job.tasks) - 1}{limit}"


def _unholdable(name: str, value: str | None) -> Diagnostic | None:
    reason = ""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        reason = "it is no option of sbatch"
    elif value is not None and _CONTROL.search(value):
        reason = "a #SBATCH line holds no line break or control character"
    elif value is not None and len(value.encode("utf-8", "surrogateescape")) > _LONGEST:
        reason = f"it has more than {_LONGEST} bytes"
    elif name == "output" and "\\" in (value or ""):
        reason = "in a path with a backslash Slurm fills in no job number"
    if not reason:
        return None
    hint = "change the value; in the job's own commands (KEY=VALUE, launch.env) any text can stand"
    return codes.SCHEDULERS_VALUE(f"--{name}", repr(value)[:200], scheduler="Slurm", reason=reason, hint=hint)


def _binds(job: ClusterJob) -> list[str]:
    """Return what a container sees: the site's mounts, and the folders of this job."""
    folders = dict.fromkeys(str(path) for path in (job.folder, job.config.parent, job.out))
    return [*job.site.mounts, *(f"{folder}:{folder}" for folder in folders)]


def _container_options(job: ClusterJob) -> tuple[str, ...]:
    """Return the options of srun that make it start the tasks in a container (pyxis)."""
    if job.site.container != "pyxis":
        return ()
    names = ("MASTER_ADDR", "PACELINE_STORE_SECRET_FILE", "PACELINE_EXIT_CODES", *job.env, *job.secrets)
    return (
        f"--container-image={job.site.image}",
        f"--container-mounts={','.join(_binds(job))}",
        f"--container-workdir={job.folder}",
        f"--container-env={','.join(names)}",
    )


def _inside(job: ClusterJob) -> tuple[str, ...]:
    """Return what stands before a task's command: apptainer, where it runs the image."""
    if job.site.container != "apptainer":
        return ()
    binds = [word for bind in _binds(job) for word in ("--bind", bind)]
    gpus = ("--nv",) if job.gpus_per_node else ()
    return ("apptainer", "exec", *gpus, *binds, "--pwd", str(job.folder), str(job.site.image))


def _container_findings(job: ClusterJob) -> list[Diagnostic]:
    site, findings = job.site, []
    if site.container != "none" and not site.image:
        reason = "a container needs an image"
        findings.append(
            codes.SCHEDULERS_VALUE(
                "launch.container", site.container, scheduler="Slurm", reason=reason, hint="set launch.image"
            )
        )
    if site.container == "none" and site.image:
        reason = "Slurm alone starts no image"
        hint = "launch.container: pyxis, or apptainer"
        findings.append(
            codes.SCHEDULERS_VALUE("launch.image", site.image, scheduler="Slurm", reason=reason, hint=hint)
        )
    if site.container != "none":
        for bind in _binds(job):
            if "," in bind or bind.count(":") > 2:
                reason = "a comma or a further colon ends the mount's path"
                findings.append(
                    codes.SCHEDULERS_VALUE(
                        "launch.mounts", bind, scheduler="Slurm", reason=reason, hint="rename the folder"
                    )
                )
    return findings


def _notes(job: ClusterJob) -> tuple[str, ...]:
    notes = []
    if job.time_limit is None:
        notes.append("no time limit is set: the partition's default holds (launch.time_limit)")
    return tuple(notes)


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
        check_owner(script)
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
