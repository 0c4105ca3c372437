"""The launchers by name: a row each, and a file beside this one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.launchers import accelerate, deepspeed, local, mpi, torchrun
from paceline.launch.process_spec import Cluster, LaunchSpec


class Specs(Protocol):
    """A launcher: a pure function from a worker's command and the cluster to the processes of this node."""

    def __call__(
        self, worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
    ) -> tuple[LaunchSpec, ...]: ...


#: Run the worker without a launcher, for a single process.
ALONE = "single"
LAUNCHERS: Mapping[str, Specs] = {
    ALONE: local.single_spec,
    "spawn": local.spawn_specs,
    "torchrun": torchrun.specs,
    "mpirun": mpi.specs,
    "accelerate": accelerate.specs,
    "deepspeed": deepspeed.specs,
}
OFFERED = tuple(name for name in LAUNCHERS if name != ALONE)


def launcher_for(cluster: Cluster, requested: str | None = None) -> str:
    """Return the launcher: ``requested`` if given, else ``single`` for one process and ``spawn`` for more.

    Raises ConfigError for an unknown launcher.
    """
    if requested is None:
        return ALONE if cluster.world_size == 1 else "spawn"
    if requested not in OFFERED:
        near = difflib.get_close_matches(requested, OFFERED, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(OFFERED)}"
        raise ConfigError(codes.LAUNCH_UNKNOWN("--launcher", requested, requested=requested, hint=hint))
    return requested
