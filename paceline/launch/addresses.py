"""The address of node 0: whether other nodes can reach it, and whether node 0 runs on this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.process_spec import Cluster
from paceline.launch.processes import environments

_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_WAIT_SECONDS = 60.0  # for node 0 of the same machine to start its workers


def is_loopback(address: str) -> bool:
    """Return True if an address or host name refers to the local machine, judging by its spelling alone."""
    text = address.strip().strip("[]").lower()
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return text in _NAMES or text.endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def resolves_to_loopback(name: str) -> str:
    """Return the loopback address that this machine resolves ``name`` to (``/etc/hosts``).

    Empty if the name does not resolve, or resolves to any address that is not loopback.
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    return min(found) if found and all(is_loopback(address) for address in found) else ""


def own_address() -> str:
    """Return an address at which other machines can reach this one; ``HOST`` if it is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # UDP: picks a route, sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return "HOST"
    return "HOST" if is_loopback(own) else own


def check_address(cluster: Cluster, *, named: bool) -> list[Diagnostic]:
    """Check that several nodes can meet at ``cluster.master_addr``; return warnings.

    ``named``: the user or a launcher has set the address. Raises ConfigError (``launch.master_addr``) if the
    nodes cannot meet: no address was set, or the name resolves to this machine's own loopback address.
    """
    if cluster.num_nodes == 1:
        return []
    address = cluster.master_addr
    hint = (
        f"use --master-addr {own_address() if cluster.node_rank == 0 else 'HOST'}, an address of"
        " node 0 that every node can reach; the same on every node"
    )
    if not named:
        what = (
            f"there are {cluster.num_nodes} nodes, but the address of node 0 is not given: node"
            f" {cluster.node_rank} would wait for itself"
        )
        raise ConfigError(codes.LAUNCH_MASTER_ADDR(what, "--master-addr", "not given", hint))
    if is_loopback(address):
        what = (
            f"{address} is reachable only from this machine: all {cluster.num_nodes} nodes must be"
            " started here, or they cannot connect"
        )
        return [codes.LAUNCH_LOOPBACK(what, "--master-addr", address, hint, Severity.WARNING)]
    mine = resolves_to_loopback(address)
    if mine:
        what = (
            f"on this machine {address} resolves to {mine} (/etc/hosts), so the other nodes would"
            " try to connect to themselves"
        )
        raise ConfigError(codes.LAUNCH_MASTER_ADDR(what, "--master-addr", address, hint))
    return list(_unresolved(cluster, hint))


def _unresolved(cluster: Cluster, hint: str) -> Iterator[Diagnostic]:
    """Yield a warning if this machine cannot resolve the address: it may later, as a pod's name."""
    try:
        socket.getaddrinfo(cluster.master_addr, None, type=socket.SOCK_STREAM)
    except OSError as error:
        what = "this machine cannot resolve the address of node 0; the start waits until it can"
        found = f"{cluster.master_addr}: {error.strerror or error}"
        yield codes.LAUNCH_MASTER_ADDR(what, "--master-addr", found, hint, Severity.WARNING)


def await_node_0(
    cluster: Cluster, report: Callable[[str], None], wait_seconds: float = _WAIT_SECONDS
) -> None:
    """On a node other than 0 with a loopback address: wait until node 0's first worker runs on this machine.

    Raises ConfigError (``launch.master_addr``) if it does not start in ``wait_seconds``.
    """
    if cluster.node_rank == 0 or cluster.num_nodes == 1 or not is_loopback(cluster.master_addr):
        return
    report(
        f"node {cluster.node_rank} waits for node 0 at {cluster.master_addr}:{cluster.master_port}, which"
        " must be started on this machine"
    )
    deadline = time.monotonic() + wait_seconds
    while not _node_0_runs(cluster):
        if time.monotonic() > deadline:
            what = (
                f"node 0 was not started on this machine within {wait_seconds:.0f} s, and"
                f" {cluster.master_addr} is not another machine"
            )
            hint = "use --master-addr HOST, the address of node 0; the same on every node"
            raise ConfigError(codes.LAUNCH_MASTER_ADDR(what, "--master-addr", cluster.master_addr, hint))
        time.sleep(0.2)


def _node_0_runs(cluster: Cluster) -> bool:
    """Whether node 0 of this job runs on this machine: its first worker exists, or its agent listens."""
    port, own = cluster.master_port or 0, os.getpid()
    first = {"RANK=0", f"MASTER_PORT={port}"}
    if any(pid != own and first <= words for pid, words in environments()):
        return True
    try:
        with socket.create_connection((cluster.master_addr, port), timeout=0.2):
            return True
    except OSError:
        return False
