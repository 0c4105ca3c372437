"""A job as every scheduler sees it: what runs on each node, what the site wants around it, and its name.

``SCHEDULERS`` has the schedulers; a scheduler's module is imported when it is asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline.config.sections.launch import LaunchSection, seconds_of
from paceline.core.plugins.tables import load_attr
from paceline.launch.run_secret import VALUE


@dataclass(frozen=True)
class ArrayTask:
    """One run of a sweep: ``settings`` are its KEY=VALUE, ``run`` its directory."""

    name: str
    settings: tuple[str, ...]
    run: str


@dataclass(frozen=True)
class ServedModel:
    """The model of a generation server, by the config's names."""

    name: str
    max_length: int
    tokenizer: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class ClusterJob:
    """What a scheduler is asked to run.

    - ``name``: lower-case letters, digits and dashes, at most 40 characters (a label of Kubernetes)
    - ``program``: argv of ``paceline`` on the nodes; in a container it is found on PATH
    - ``overrides``: KEY=VALUE of the command line
    - ``run``: the run's directory or URL; ``out``: where the files are written; ``folder``: the working
      directory
    - ``gpus_per_node``: accelerators asked for (0: a run on CPUs); ``nproc``: ranks of a node
    - ``time_limit``: seconds; None where neither the config nor the plan says
    - ``env``: variables of the ranks; ``secrets``: variable → where its value is. A value is in no file
    - ``tasks``: the runs of a sweep; else empty
    - ``checkpoint_url``, ``upload_timeout``: as in the config
    - ``served``: what generation servers of the job would load; None where the run has no rollouts
    """

    name: str
    program: tuple[str, ...]
    config: Path
    overrides: tuple[str, ...]
    run: str
    out: Path
    folder: Path
    nodes: int
    gpus_per_node: int
    nproc: int
    port: int
    site: LaunchSection
    time_limit: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[ArrayTask, ...] = ()
    checkpoint_url: str | None = None
    upload_timeout: float | None = None
    served: ServedModel | None = None

    def command(self, config: str | None = None, *, sized: bool = True, restarts: int = 0) -> tuple[str, ...]:
        """Return argv of one node's launcher, without its rank and address; it resumes by itself.

        - ``config``: where the YAML is on the nodes, if not where it is here
        - ``sized``: with the numbers of nodes and processes, which torchrun's variables give otherwise
        - ``restarts``: the launcher's own, where the scheduler has none
        """
        sizes = ("--nnodes", str(self.nodes), "--nproc", str(self.nproc)) if sized else ()
        counted = f"launch.max_restarts={restarts}"
        given = (config or str(self.config), *self.overrides, counted, *sizes)
        return (*self.program, "train", *given, "--resume", "auto")

    @property
    def fixed_time_limit(self) -> int | None:
        """Seconds that the config itself sets, where a prediction must not end the job."""
        return seconds_of(self.site.time_limit) if self.site.time_limit else None

    @property
    def signs(self) -> bool:
        """Whether the ranks of several nodes sign with a secret of the job, as the site gives them none."""
        return self.nodes > 1 and VALUE not in self.secrets and not self.site.allow_unsigned_store

    @property
    def interfaces(self) -> dict[str, str]:
        """Return the variables by which gloo and NCCL take the site's interface."""
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return dict.fromkeys(names, self.site.interface) if self.site.interface else {}

    @property
    def max_restarts(self) -> int:
        """Restarts of the job after failures."""
        return RESTARTS if self.site.max_restarts is None else self.site.max_restarts


@dataclass(frozen=True)
class Rendering:
    """Files by name, the commands (argv) that hand them to the scheduler, and what a reader should know.

    A command names a file by its path below ``ClusterJob.out``.

    - ``executable``: files to run
    - ``store_secret``: ``SECRET_NAME`` is made next to the files, readable by its owner only
    - ``foreground``: the command is the job itself, and ends with its exit code
    - ``name``: the scheduler's own name of the job, where it is known before the job is submitted
    """

    files: Mapping[str, str]
    submit: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    executable: frozenset[str] = frozenset()
    store_secret: bool = False
    foreground: bool = False
    name: str = ""


class Scheduler(Protocol):
    """One scheduler: a pure function from a job to its files and commands."""

    def __call__(self, job: ClusterJob) -> Rendering: ...


RESTARTS = 3  # of a job, unless launch.max_restarts says otherwise
#: In ``ClusterJob.out``: the secret with which ranks of several nodes sign their messages.
SECRET_NAME = "store-secret"


#: JobSet and Job append ``-servers-0-99999-abcde`` to it, and a pod's name has 63 characters at most
LONGEST = 40
_DIGEST = 6


def dns_name(text: str) -> str:
    """Return ``text`` where it is such a name, else a name like it that ends with a digest of it."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"run-{plain}".strip("-")
    if plain == text and len(text) <= LONGEST:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=_DIGEST // 2).hexdigest()
    return f"{plain[: LONGEST - _DIGEST - 1].strip('-')}-{digest}"


#: name → its function
SCHEDULERS: Mapping[str, str] = {
    "slurm": "paceline.schedulers.slurm.job:slurm_job",
    "kubernetes": "paceline.schedulers.kubernetes.job:kubernetes_job",
    "ray": "paceline.schedulers.ray.job:ray_job",
    "skypilot": "paceline.schedulers.clouds.skypilot:skypilot_job",
    "dstack": "paceline.schedulers.clouds.dstack:dstack_job",
    "mpi": "paceline.schedulers.hosts:mpi_job",
    "ssh": "paceline.schedulers.hosts:ssh_job",
    "local": "paceline.schedulers.script_job:local_job",
}
#: those whose nodes see the disk of the machine that launches
SHARES_DISK = ("slurm", "mpi", "ssh", "local")


def scheduler_named(name: str) -> Scheduler:
    """Return a scheduler's function."""
    function: Scheduler = load_attr(SCHEDULERS[name])
    return function
