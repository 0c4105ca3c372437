"""A start that is refused on this node is told to the others, which would wait for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.core.errors import PacelineError
from paceline.launch import codes
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.process_spec import Cluster, import_path, module_argv, rank_environment
from paceline.launch.supervision.supervisor import report_to_stderr

if TYPE_CHECKING:
    from paceline.config.sections.training_scale import LaunchSection

_LIMIT_SECONDS = 90.0  # torch is imported, then publish_refusal.HOST_SECONDS


@contextlib.contextmanager
def reported_to_other_nodes(launch: LaunchSection) -> Iterator[None]:
    """Tell an error inside the block to the ranks of other nodes that wait for this one."""
    try:
        yield
    except PacelineError as error:
        # without an address of node 0 there is nobody to tell
        if launch.nnodes > 1 and error.diagnostics[0].code != codes.LAUNCH_MASTER_ADDR.name:
            _report(launch, error)
        raise


def _report(launch: LaunchSection, error: PacelineError) -> None:
    port = launch.master_port or DEFAULT_PORT
    cluster = Cluster(launch.nproc or 1, launch.nnodes, launch.node_rank, launch.master_addr, port)
    report_to_stderr(
        f"node {launch.node_rank} is refused ({error.diagnostics[0].what}) and tells the nodes that wait for"
        " it or start within a minute; Ctrl-C ends this"
    )
    message = {"rank": 0, "exit_code": 0, "diagnostic": error.diagnostics[0].to_json()}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            module_argv("paceline.runtime.process_group.rendezvous"),
            input=json.dumps(message, default=str).encode(),
            env={**os.environ, **import_path(os.environ), **rank_environment(cluster, 0)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
