"""Several nodes: where they meet is said before the start, and a node does not wait for itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core.diagnostics import Severity
from paceline.core.errors import ConfigError
from paceline.launch import network
from paceline.launch.network import await_node_0, check_address, free_port, is_loopback
from paceline.launch.process_spec import Cluster

LINKS = Path("/proc/net/if_inet6")  # this machine's IPv6 addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.3.2.1",
        "::1",
        "[::1]",
        "localhost",
        "LOCALHOST",
        "0.0.0.0",
        "ip6-localhost",
        "x.localhost",
    ],
)
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "gpu0", "fe80::1", "localhost.example.org", ""])
def test_no_loopback(address: str) -> None:
    assert not is_loopback(address)


def several(address: str, node: int = 1) -> Cluster:
    return Cluster(1, 2, node, address, 29500)


@pytest.mark.parametrize("node", [0, 1])
def test_several_nodes_and_no_address_are_refused(node: int) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(several("127.0.0.1", node), is_set=False)
    (found,) = caught.value.diagnostics
    assert found.code == "launch.master_addr" and "wait for itself" in found.what
    assert found.hint.startswith("use --master-addr ")


def test_a_loopback_address_somebody_wrote_is_a_warning() -> None:
    for address in ("127.0.0.1", "localhost", "::1"):
        (found,) = check_address(several(address), is_set=True)
        assert (found.code, found.severity) == ("launch.loopback", Severity.WARNING)


def test_a_name_that_the_hosts_file_gives_to_this_machine_or_to_none_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        table = {"gpu0": ["127.0.1.1"], "gpu1": ["10.0.0.2"], "both": ["127.0.0.1", "10.0.0.2"]}
        if name not in table:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in table[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ConfigError, match=r"127\.0\.1\.1"):
        check_address(several("gpu0"), is_set=True)
    for fine in ("gpu1", "both"):
        assert check_address(several(fine), is_set=True) == []
    (warning,) = check_address(several("nobody"), is_set=True)
    assert warning.severity == Severity.WARNING and "cannot resolve" in warning.what


def test_node_0_whose_address_is_another_machines_is_named() -> None:
    """Without --node_rank every node is node 0 (accelerate#2246); 192.0.2.0/24 belongs to no machine."""
    (warning,) = check_address(several("192.0.2.7", 0), is_set=True)
    assert warning.severity == Severity.WARNING and "no address of this machine" in warning.what
    assert "--node_rank 1" in warning.hint
    assert check_address(several("192.0.2.7", 1), is_set=True) == []
    own = network.own_address()
    assert own == "HOST" or check_address(several(own, 0), is_set=True) == []
    for line in LINKS.read_text().splitlines() if LINKS.exists() else ():
        address, *_, interface = line.split()
        if address.startswith("fe80"):
            groups = ":".join(address[at : at + 4] for at in range(0, 32, 4))
            assert check_address(several(f"{groups}%{interface}", 0), is_set=True) == []


def test_one_node_needs_no_address() -> None:
    assert check_address(Cluster(4), is_set=False) == []


def test_a_second_node_on_this_machine_waits_for_the_first_ones_worker() -> None:
    said: list[str] = []
    port = free_port()
    cluster = Cluster(1, 2, 1, "127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"launch\.master_addr"):
        await_node_0(cluster, said.append, wait_seconds=0.0)
    assert "waits for node 0" in said[0]
    environ = {**os.environ, "RANK": "0", "MASTER_PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], env=environ, stdin=subprocess.PIPE
    ) as worker:
        await_node_0(cluster, said.append, wait_seconds=20.0)
        worker.communicate()


def test_or_for_its_agent_to_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as agent:
        await_node_0(Cluster(1, 2, 1, "localhost", agent.getsockname()[1]), lambda _: None, wait_seconds=0.0)


def test_nobody_else_waits() -> None:
    def never(text: str) -> None:
        raise AssertionError(text)

    for cluster in (Cluster(2), several("127.0.0.1", 0), several("10.0.0.1", 1)):
        await_node_0(cluster, never, wait_seconds=0.0)
    assert network.own_address()
