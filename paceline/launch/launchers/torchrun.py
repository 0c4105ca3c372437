"""The torchrun launcher: one elastic agent per node, static rendezvous, no restarts.

The agent is ``paceline.runtime.torchrun_agent``: torchrun's own code and flags, but it returns the worker's
exit code and does not print its error box over the worker's message. Static rendezvous, since with c10d the
store is shared across attempts and gloo connects to dead ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.ports import gloo_interface
from paceline.launch.process_spec import Cluster, LaunchSpec, import_path, module_and_args, thread_count

AGENT_MODULE = "paceline.runtime.torchrun_agent"


def flags(cluster: Cluster) -> tuple[str, ...]:
    """Return torchrun's flags for this node."""
    return (
        f"--nnodes={cluster.num_nodes}",
        f"--nproc-per-node={cluster.nproc}",
        f"--node-rank={cluster.node_rank}",
        "--rdzv-backend=static",
        f"--master-addr={cluster.master_addr}",
        f"--master-port={cluster.master_port}",
        "--max-restarts=0",
    )


def specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return the single agent of node ``cluster.node_rank``."""
    env = {
        **import_path(environ),
        **thread_count(environ, cores, cluster.nproc),
        **gloo_interface(cluster, environ),
    }
    argv = (worker[0], "-m", AGENT_MODULE, *flags(cluster), *module_and_args(worker))
    return (LaunchSpec(argv, env, cluster.node_rank, rank=None, ranks=cluster.nproc),)
