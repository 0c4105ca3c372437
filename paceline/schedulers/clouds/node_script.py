"""The script that runs on every node of a task."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from paceline.core.diagnostics import Diagnostic
from paceline.launch.supervision.exit_codes import After
from paceline.schedulers import codes
from paceline.schedulers.job import ClusterJob
from paceline.schedulers.templates import codes_after, environment

_QUANTITY = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT])(i?)B?", re.IGNORECASE)
_POWERS = {"k": -2, "m": -1, "g": 0, "t": 1}


@dataclass(frozen=True)
class Cloud:
    """What a service calls its nodes.

    - ``key``: the service in ``job.SCHEDULERS``
    - ``rank``, ``address``: shell words; ``folder``: where the files lie
    - ``restarts``: it starts a failed job again
    """

    name: str
    key: str
    rank: str
    address: str
    folder: str
    restarts: bool


def node_script(job: ClusterJob, cloud: Cloud) -> str:
    """Return the script: it starts this node's launcher, tells it to save, and answers its exit code."""
    settings = [f"training.output_dir={run_folder(job, cloud)}"]
    here = replace(job, overrides=(*job.overrides, *settings))
    command = here.command(job.config.name, restarts=0 if cloud.restarts else job.max_restarts)
    return (
        environment(Path(__file__).parent)
        .get_template("node.sh.jinja")
        .render(
            job=job,
            folder=home_word(cloud.folder),
            rank=cloud.rank,
            address=cloud.address,
            secrets={name: home_word(path) for name, path in secret_files(job).items()},
            command=command,
            done=codes_after(After.DONE),
        )
    )


def home_word(path: str) -> str:
    """Return a path as a shell's word; ``~/`` at its start is the home folder of the node."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def run_folder(job: ClusterJob, cloud: Cloud) -> str:
    """Return the run's directory on a node: the config's where a mount has it, else one next to the files."""
    held = any(PurePosixPath(job.run).is_relative_to(target) for _, target in mounts(job))
    return job.run if held else "run"


def mounts(job: ClusterJob) -> list[tuple[str, str]]:
    """Return the site's mounts as (source, folder); the source may be a URL."""
    parts = (text.rpartition(":") for text in job.site.mounts)
    return [(source, target) for source, _, target in parts]


def secret_files(job: ClusterJob) -> dict[str, str]:
    """Return the secrets that are files on the nodes."""
    return {name: source for name, source in job.secrets.items() if source.startswith(("/", "~/"))}


def secret_names(job: ClusterJob) -> dict[str, str]:
    """Return the secrets that the service itself holds."""
    return {name: source for name, source in job.secrets.items() if name not in secret_files(job)}


def gigabytes(text: str) -> int | None:
    """Return ``256G``, ``64Gi`` or ``1TB`` in GB, rounded up; None for another text."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None
    number, letter, binary = match.groups()
    base = 1024 if binary else 1000
    exact = float(number) * base ** (_POWERS[letter.lower()] + 3) / 1e9
    return -int(-exact // 1)


def findings(job: ClusterJob, cloud: Cloud) -> Iterator[Diagnostic]:
    """Yield what keeps a job from being such a task."""

    def refuse(where: str, value: str, reason: str, hint: str) -> Diagnostic:
        return codes.SCHEDULERS_VALUE(where, value, scheduler=cloud.name, reason=reason, hint=hint)

    if job.tasks:
        yield refuse("sweep", f"{len(job.tasks)} runs", "arrays of runs are Slurm's", "launch each by itself")
    if job.site.memory and gigabytes(job.site.memory) is None:
        yield refuse("launch.memory", job.site.memory, "it is no amount of memory", "256G")
    for text, (source, target) in zip(job.site.mounts, mounts(job), strict=True):
        if not source or not target.startswith(("/", "~/")):
            yield refuse("launch.mounts", text, "it is not SOURCE:/FOLDER", "s3://bucket/folder:/folder")
    if not job.checkpoint_url and run_folder(job, cloud) != job.run:
        yield codes.SCHEDULERS_LOST("training.checkpoint_url", f"not given; the run's directory is {job.run}")
