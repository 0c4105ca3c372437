"""The schedulers by name; a scheduler's module is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.plugins.tables import load_attr
from paceline.schedulers.job import Scheduler

#: name → its function
SCHEDULERS: Mapping[str, str] = {
    "slurm": "paceline.schedulers.slurm.render:slurm_job",
}


def scheduler_named(name: str) -> Scheduler:
    """Return a scheduler's function."""
    function: Scheduler = load_attr(SCHEDULERS[name])
    return function
