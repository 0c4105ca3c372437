"""The schedulers by name; a scheduler's module is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.plugins.tables import load_attr
from paceline.schedulers.job import Scheduler

#: name → its function
SCHEDULERS: Mapping[str, str] = {
    "slurm": "paceline.schedulers.slurm.render:slurm_job",
    "kubernetes": "paceline.schedulers.kubernetes.render:kubernetes_job",
    "ray": "paceline.schedulers.ray.render:ray_job",
    "skypilot": "paceline.schedulers.clouds.skypilot:skypilot_job",
    "dstack": "paceline.schedulers.clouds.dstack:dstack_job",
    "mpi": "paceline.schedulers.mpi:mpi_job",
    "ssh": "paceline.schedulers.ssh:ssh_job",
    "local": "paceline.schedulers.local:local_job",
}
#: those whose nodes see the disk of the machine that launches
SHARES_DISK = ("slurm", "mpi", "ssh", "local")


def scheduler_named(name: str) -> Scheduler:
    """Return a scheduler's function."""
    function: Scheduler = load_attr(SCHEDULERS[name])
    return function
