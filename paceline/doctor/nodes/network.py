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


def resolved(host: str) -> tuple[socket.AddressFamily, str]:
    """Return family and address of ``host``, IPv4 first. Raises OSError if it is unknown."""
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family, _, _, _, place = min(infos, key=lambda info: info[0] != socket.AF_INET)
    return family, str(place[0])


def address_towards(host: str) -> str:
    """Return this node's address on the route to ``host``. Raises OSError without a route."""
    family, address = resolved(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # UDP: picks a route, sends nothing
        return str(probe.getsockname()[0])


def listen_at(address: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this machine."""
    return socket.create_server((address, port), family=resolved(address)[0])


def interface_facts(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return name, network, MTU and speed of the interface that has ``address``.

    Also the network of each interface that a variable names.
    """
    facts = {}
    networks = {}
    for name, there, mask in _interfaces():
        networks[name] = str(ipaddress.ip_network(f"{there}/{mask}", strict=False))
        if there == address:
            facts = {"interface": name, "network": networks[name], "MTU": _read(name, "mtu")}
            speed = _read(name, "speed")
            facts |= {"speed": f"{speed} Mb/s"} if speed.isdecimal() else {}
    for variable in _NAMING if facts else ():
        usable = (chosen_interfaces(variable, environ) & networks.keys()) - {"lo"}
        chosen = {networks[name] for name in usable}
        facts[f"network of {variable}"] = ", ".join(sorted(chosen)) or facts["network"]
    return facts


def chosen_interfaces(variable: str, environ: Mapping[str, str]) -> set[str]:
    """Return the interfaces here that a variable allows; empty if it is not set, or only forbids some."""
    value = environ.get(variable, "")
    if not value or value.startswith("^"):
        return set()
    exact = value.startswith("=") or not variable.startswith("NCCL")
    words = [word for word in value.lstrip("=").split(",") if word]
    names = {name for _, name in socket.if_nameindex()}
    return {name for name in names for word in words if (name == word if exact else name.startswith(word))}


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
    if is_loopback(address) or not route:  # or an address of IPv6, which is not judged
        return []
    findings = []
    names = {name for _, name in socket.if_nameindex()}
    addressed = {name for name, _, _ in _interfaces()}
    for variable in _NAMING:
        value = environ.get(variable, "")
        if not value or value.startswith("^"):
            continue
        usable = chosen_interfaces(variable, environ)
        if not usable & addressed - {"lo"}:
            shown = f"{variable}={value}; here are {', '.join(sorted(names))}"
            findings.append(
                codes.NODE_INTERFACE(variable, shown, variable=variable, name=route.get("interface", ""))
            )
    return findings
