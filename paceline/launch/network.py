"""Find and check node 0's address, the rendezvous port, and the network interface."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.process_spec import Cluster
from paceline.launch.processes import environments

DEFAULT_PORT = 29500  # torchrun's default; several nodes cannot agree on a free port before they meet
SEARCH = 200  # ports above the one in use; any free one after that
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_LOCAL_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_WAIT_SECONDS = 60.0  # for node 0 of the same machine to start its workers
_OPTION = "--master-addr"


def resolve_port(cluster: Cluster) -> Cluster:
    """Return ``cluster`` with a usable port; one node without a port (or with 0) gets a free one.

    Raises ConfigError if the port is in use.
    """
    port = cluster.master_port or (free_port() if cluster.num_nodes == 1 else DEFAULT_PORT)
    is_given = cluster.master_port or cluster.num_nodes > 1
    if is_given and cluster.node_rank == 0 and not port_is_free(port):
        everywhere = "" if cluster.num_nodes == 1 else " on every node"
        remedy = f"use --master_port {next_free_port(port)}{everywhere}"
        raise ConfigError(codes.LAUNCH_PORT_IN_USE("launch.master_port", str(port), port=port, hint=remedy))
    return replace(cluster, master_port=port)


def check_cluster(cluster: Cluster) -> None:
    """Raise ConfigError for impossible numbers: fewer than one process, or a node rank outside the nodes."""
    nodes, node = cluster.num_nodes, cluster.node_rank
    if cluster.nproc < 1 or nodes < 1:
        raise ConfigError(codes.LAUNCH_COUNT("--nproc", f"{cluster.nproc} on {nodes} nodes"))
    if not 0 <= node < nodes:
        last = nodes - 1
        several = f"use a number from 0 to {last}, or --nnodes {node + 1}"
        remedy = f"use --node_rank {last}" if last == 0 else several
        raise ConfigError(
            codes.LAUNCH_NODE_RANK("--node_rank", str(node), num_nodes=nodes, last=last, hint=remedy)
        )


def port_is_free(port: int) -> bool:
    """Whether this machine can listen on ``port`` at all its addresses, as torch's store does."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            # any other error of the second is that this machine has no IPv6
            if family == socket.AF_INET or error.errno in (errno.EACCES, errno.EADDRINUSE):
                return False
    return True


def free_port() -> int:
    """Return an unused port from the system's ephemeral range."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def next_free_port(port: int) -> int:
    """Return the first free port above ``port``, or any free one."""
    candidates = range(port + 1, min(port + SEARCH, 65536))
    return next((candidate for candidate in candidates if port_is_free(candidate)), None) or free_port()


def gloo_interface(cluster: Cluster, environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``GLOO_SOCKET_IFNAME`` for several nodes, unless it is set.

    Without it gloo may bind to the address of the host's name, often 127.0.0.1.
    """
    if cluster.num_nodes == 1 or environ.get("GLOO_SOCKET_IFNAME"):
        return {}
    name = interface_to(cluster.master_addr)
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def interface_to(address: str) -> str | None:
    """Return the network interface that reaches ``address``.

    None if unknown (only IPv4 on Linux is supported).
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # UDP: picks a route, sends nothing
            local = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                except OSError:  # an interface without an IPv4 address
                    continue
                if socket.inet_ntoa(answer[20:24]) == local:
                    return name
    except OSError:
        return None
    return None


def is_loopback(address: str) -> bool:
    """Return True if an address or host name refers to the local machine, judging by its spelling alone."""
    text = address.strip().strip("[]").lower()
    try:
        number = ipaddress.ip_address(text)
    except ValueError:
        return text in _LOCAL_NAMES or text.endswith(".localhost")
    return number.is_loopback or number.is_unspecified


def resolves_to_loopback(name: str) -> str:
    """Return the loopback address that this machine resolves ``name`` to (``/etc/hosts``).

    Empty if the name does not resolve, or resolves to any address that is not loopback.
    """
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    return min(addresses, default="") if all(map(is_loopback, addresses)) else ""


def own_address() -> str:
    """Return an address at which other machines can reach this one; ``HOST`` if it is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # UDP: picks a route, sends nothing
            local = str(probe.getsockname()[0])
    except OSError:
        return "HOST"
    return "HOST" if is_loopback(local) else local


def check_address(cluster: Cluster, *, is_set: bool) -> list[Diagnostic]:
    """Check that several nodes can meet at ``cluster.master_addr``; return warnings.

    ``is_set``: the user or a launcher has set the address. Raises ConfigError (``launch.master_addr``) if the
    nodes cannot meet: no address was set, or the name resolves to this machine's own loopback address.
    """
    if cluster.num_nodes == 1:
        return []
    address, nodes = cluster.master_addr, cluster.num_nodes
    remedy = (
        f"use --master-addr {own_address() if cluster.node_rank == 0 else 'HOST'}, an address of"
        " node 0 that every node can reach; the same on every node"
    )
    if not is_set:
        problem = (
            f"there are {nodes} nodes, but the address of node 0 is not given: node"
            f" {cluster.node_rank} would wait for itself"
        )
        raise ConfigError(codes.LAUNCH_MASTER_ADDR(problem, _OPTION, "not given", remedy))
    if is_loopback(address):
        problem = (
            f"{address} is reachable only from this machine: all {nodes} nodes must be"
            " started here, or they cannot connect"
        )
        return [codes.LAUNCH_LOOPBACK(problem, _OPTION, address, remedy, Severity.WARNING)]
    if local := resolves_to_loopback(address):
        problem = (
            f"on this machine {address} resolves to {local} (/etc/hosts), so the other nodes would"
            " try to connect to themselves"
        )
        raise ConfigError(codes.LAUNCH_MASTER_ADDR(problem, _OPTION, address, remedy))
    try:
        addresses = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError as error:  # it may resolve later, as a pod's name
        problem = "this machine cannot resolve the address of node 0; the start waits until it can"
        reason = f"{address}: {error.strerror or error}"
        return [codes.LAUNCH_MASTER_ADDR(problem, _OPTION, reason, remedy, Severity.WARNING)]
    if cluster.node_rank == 0 and not any(
        _is_own(family, str(to[0]), to[2:]) for family, _, _, _, to in addresses
    ):
        problem = (
            f"this is node 0 (launch.node_rank: 0), but {address} is no address of this machine: if it is"
            " that of another node, each node waits for one that does not come"
        )
        remedy = f"on other nodes than 0: --node_rank 1 (to {nodes - 1}); on node 0 an address of its own"
        # No refusal: the address may be forwarded to this machine, as a service's is to its pod
        return [codes.LAUNCH_MASTER_ADDR(problem, _OPTION, address, remedy, Severity.WARNING)]
    return []


def _is_own(family: int, address: str, scope: tuple[int, ...] = ()) -> bool:
    """Return True if this machine can listen at ``address``; ``scope``: flow and interface of an IPv6 one."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0, *scope))
    except OSError:
        return False
    return True


def await_node_0(
    cluster: Cluster, report: Callable[[str], None], wait_seconds: float = _WAIT_SECONDS
) -> None:
    """On a node other than 0 with a loopback address: wait until node 0's first worker runs on this machine.

    Raises ConfigError (``launch.master_addr``) if it does not start in ``wait_seconds``.
    """
    address = cluster.master_addr
    if cluster.node_rank == 0 or cluster.num_nodes == 1 or not is_loopback(address):
        return
    report(
        f"node {cluster.node_rank} waits for node 0 at {address}:{cluster.master_port}, which"
        " must be started on this machine"
    )
    deadline = time.monotonic() + wait_seconds
    while not _node_0_runs(cluster):
        if time.monotonic() > deadline:
            problem = (
                f"node 0 was not started on this machine within {wait_seconds:.0f} s, and"
                f" {address} is not another machine"
            )
            remedy = "use --master-addr HOST, the address of node 0; the same on every node"
            raise ConfigError(codes.LAUNCH_MASTER_ADDR(problem, _OPTION, address, remedy))
        time.sleep(0.2)


def _node_0_runs(cluster: Cluster) -> bool:
    """Whether node 0 of this job runs on this machine: its first worker exists, or its agent listens."""
    port = cluster.master_port or 0
    first = {"RANK=0", f"MASTER_PORT={port}"}
    if any(pid != os.getpid() and first <= variables for pid, variables in environments()):
        return True
    try:
        with socket.create_connection((cluster.master_addr, port), timeout=0.2):
            return True
    except OSError:
        return False
