"""The interface by which a node reaches node 0, and variables that name one."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.doctor.nodes import codes
from paceline.launch.network import is_loopback

_NET = Path("/sys/class/net")
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h
#: Variables that name interfaces; NCCL's has a syntax: ^excluded, =exactly, several by comma.
_NAMING = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def address_towards(host: str) -> str:
    """Return this node's address on the route to ``host``; of all interfaces if there is no route.

    Raises OSError if the name is unknown.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # UDP: picks a route, sends nothing
        return str(probe.getsockname()[0])


def interface_facts(address: str) -> dict[str, str]:
    """Return name, network, MTU and speed of the interface that has ``address``."""
    for name, there, mask in _interfaces():
        if there == address:
            network = ipaddress.ip_network(f"{there}/{mask}", strict=False)
            facts = {"interface": name, "network": str(network), "MTU": _read(name, "mtu")}
            speed = _read(name, "speed")
            return facts | ({"speed": f"{speed} Mb/s"} if speed.isdecimal() else {})
    return {}


def _interfaces() -> Iterator[tuple[str, str, str]]:
    """Yield (name, address, netmask) of each interface with an IPv4 address."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(probe.fileno(), call, request)[20:24])
                    for call in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:  # it has no IPv4 address
                continue
            yield name, address, mask


def _read(name: str, fact: str) -> str:
    try:
        return (_NET / name / fact).read_text(encoding="utf-8").strip()
    except OSError:  # a virtual one has no speed
        return ""


def interface_findings(
    route: Mapping[str, str], address: str, environ: Mapping[str, str]
) -> list[Diagnostic]:
    """Return what is wrong with the variables that name interfaces. ``route``: ``interface_facts``."""
    if is_loopback(address):
        return []
    findings = []
    names = {name for _, name in socket.if_nameindex()}
    for variable in _NAMING:
        value = environ.get(variable, "")
        if not value or value.startswith("^"):
            continue
        exact = value.startswith("=") or not variable.startswith("NCCL")
        words = [word for word in value.lstrip("=").split(",") if word]
        usable = {n for n in names for word in words if (n == word if exact else n.startswith(word))}
        if not usable or usable == {"lo"}:
            shown = f"{variable}={value}; here are {', '.join(sorted(names))}"
            findings.append(
                codes.NODE_INTERFACE(variable, shown, variable=variable, name=route.get("interface", ""))
            )
    return findings
