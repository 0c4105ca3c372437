"""The rendezvous port, and the network interface that reaches node 0."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import replace

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.process_spec import Cluster

DEFAULT_PORT = 29500  # torchrun's default; several nodes cannot agree on a free port before they meet
SEARCH = 200
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def resolve_port(cluster: Cluster) -> Cluster:
    """Return ``cluster`` with a usable port; one node without a port (or with 0) gets a free one.

    Raises ConfigError if the port is in use or out of range.
    """
    if not cluster.master_port:
        if cluster.num_nodes == 1:
            return replace(cluster, master_port=free_port())
        cluster = replace(cluster, master_port=DEFAULT_PORT)
    port = cluster.master_port
    assert port is not None
    if not 1 <= port <= 65535:
        raise ConfigError(codes.LAUNCH_PORT_RANGE("launch.master_port", str(port)))
    if cluster.node_rank == 0 and not port_is_free(port):
        free = next_free_port(port)
        raise ConfigError(
            codes.LAUNCH_PORT_IN_USE(
                "launch.master_port",
                str(port),
                port=port,
                hint=f"use --master_port {free}"
                if cluster.num_nodes == 1
                else f"use --master_port {free} on every node",
            )
        )
    return cluster


def check_cluster(cluster: Cluster) -> None:
    """Raise ConfigError for impossible numbers: fewer than one process, or a node rank outside the nodes."""
    if cluster.nproc < 1 or cluster.num_nodes < 1:
        raise ConfigError(codes.LAUNCH_COUNT("--nproc", f"{cluster.nproc} on {cluster.num_nodes} nodes"))
    if not 0 <= cluster.node_rank < cluster.num_nodes:
        last = cluster.num_nodes - 1
        raise ConfigError(
            codes.LAUNCH_NODE_RANK(
                "--node_rank",
                str(cluster.node_rank),
                num_nodes=cluster.num_nodes,
                last=last,
                hint=f"use --node_rank {last}"
                if last == 0
                else f"use a number from 0 to {last}, or --nnodes {cluster.node_rank + 1}",
            )
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
        except OSError as exc:
            if family == socket.AF_INET6 and exc.errno not in (
                13,
                98,
            ):  # no IPv6 on this machine (13 EACCES, 98 EADDRINUSE)
                continue
            return False
    return True


def free_port() -> int:
    """Return an unused port from the system's ephemeral range."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def next_free_port(port: int) -> int:
    """Return the first free port above ``port``, or any free one."""
    for candidate in range(port + 1, min(port + SEARCH, 65536)):
        if port_is_free(candidate):
            return candidate
    return free_port()


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
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                except OSError:  # an interface without an IPv4 address
                    continue
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except OSError:
        return None
    return None
