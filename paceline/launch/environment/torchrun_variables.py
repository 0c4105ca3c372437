"""``PET_…``: defaults of torchrun's flags, which Kubeflow sets in each pod: it is one node of the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.environment.job_managers import first_set, parse_nonnegative_int

_NODES, _PROCESSES, _RANK = "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"


@dataclass(frozen=True)
class TorchrunNode:
    """A node as torchrun would start it. ``nproc`` None: one process per accelerator.

    ``master_addr`` and ``master_port`` are None where the variables do not say.
    """

    num_nodes: int
    node_rank: int
    nproc: int | None
    master_addr: str | None
    master_port: int | None


def torchrun_node(environ: Mapping[str, str]) -> TorchrunNode | None:
    """Return the node that this process is to start; None without ``PET_NNODES``, and in a rank.

    ``RANK`` and ``WORLD_SIZE`` alone make no rank: Kubeflow's training operator sets them for the pod.
    Raises ConfigError (``launch.torchrun_variables``) for values that name no node.
    """
    nodes = nodes_of_torchrun(environ)
    if not nodes or environ.get("LOCAL_RANK"):
        return None
    rank = environ.get(_RANK, "")
    if nodes > 1 and not rank.isdigit():
        raise _refused(f"there are {nodes} nodes, but {_RANK} does not give this one's number", _RANK, rank)
    if rank and parse_nonnegative_int(rank, nodes) >= nodes:
        raise _refused(f"the nodes have the numbers 0 to {nodes - 1}", _RANK, rank)
    host, port = _endpoint(environ)
    if nodes > 1 and not host:
        raise _refused(f"there are {nodes} nodes, but no address of node 0", "PET_MASTER_ADDR", "")
    return TorchrunNode(nodes, parse_nonnegative_int(rank), _processes(environ), host or None, port)


def nodes_of_torchrun(environ: Mapping[str, str]) -> int:
    """Return the nodes of ``PET_NNODES``, 0 if it is not set. Raises ConfigError for an elastic range."""
    text = environ.get(_NODES, "").strip()
    least, _, most = text.partition(":")
    number = parse_nonnegative_int(least)
    if text and (not number or (most and parse_nonnegative_int(most) != number)):
        raise _refused("a run has one number of nodes from its start to its end", _NODES, text)
    return number


def _processes(environ: Mapping[str, str]) -> int | None:
    text = environ.get(_PROCESSES, "").strip().lower()
    if text in ("", "auto", "gpu"):
        return None
    if text == "cpu":
        return os.cpu_count()
    number = parse_nonnegative_int(text)
    if not number:
        raise _refused("it is no number of processes", _PROCESSES, text)
    return number


def _endpoint(environ: Mapping[str, str]) -> tuple[str, int | None]:
    """Return host and port of node 0: of the static variables, else of the rendezvous endpoint."""
    host, port = environ.get("PET_MASTER_ADDR", ""), environ.get("PET_MASTER_PORT", "")
    if not host:
        host, _, port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
        if not host:
            host, port = port, ""
    port = port or first_set(environ, ("MASTER_PORT",))
    return host.strip("[]"), parse_nonnegative_int(port) or None


def _refused(problem: str, name: str, value: str) -> ConfigError:
    return ConfigError(codes.LAUNCH_TORCHRUN_VARIABLES(name, value or "not set", problem=problem))
