"""One process: the worker itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.spec import Cluster, LaunchSpec, import_path, rank_environment


def specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return one worker. Its rank variables are set too, to override leftovers of another launcher."""
    return (LaunchSpec(tuple(worker), {**import_path(environ), **rank_environment(cluster, 0)}),)
