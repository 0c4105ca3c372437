"""A line that a dead process leaves behind is told from one that was said farewell on; strangers get none."""

from __future__ import annotations

import errno
import queue
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from paceline.runtime.failures.liveness_socket import LivenessSocket, own_address

SECRET = b"s" * 32
Dead = queue.Queue[tuple[int, int]]  # (who noticed, who is gone)


class Ranks:
    """Three ranks' ends in one process."""

    def __init__(self) -> None:
        self.dead: Dead = queue.Queue()
        self.ends = [
            LivenessSocket(rank, 3, SECRET, lambda gone, rank=rank: self.dead.put((rank, gone)))  # type: ignore[misc]
            for rank in range(3)
        ]
        self.place = self.ends[0].listen("127.0.0.1")

    def connect(self, *ranks: int) -> None:
        for rank in ranks:
            self.ends[rank].connect(self.place)

    def cut(self, rank: int) -> None:
        """As the kernel does for a process that died."""
        self.ends[rank]._stop.set()
        for line in self.ends[rank].connections.values():
            line.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    for end in made.ends[::-1]:
        end.stop()


def test_the_death_of_a_rank_is_seen_by_rank_0_and_no_farewell_is(ranks: Ranks) -> None:
    ranks.connect(1, 2)
    ranks.ends[2].stop()
    ranks.cut(1)
    assert ranks.dead.get(timeout=240) == (0, 1)
    ranks.ends[0].stop()
    assert ranks.dead.empty()


def test_the_death_of_rank_0_is_seen_by_the_others(ranks: Ranks) -> None:
    ranks.connect(1, 2)
    while len(ranks.ends[0].connections) < 2:
        pass
    ranks.cut(0)
    assert {ranks.dead.get(timeout=240) for _ in range(2)} == {(1, 0), (2, 0)}


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN])
def test_a_line_that_the_network_loses_is_no_death(
    number: int, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.connect(1, 2)

    def lost(_: int) -> bytes:
        raise OSError(number, "lost")

    end = ranks.ends[0]
    while len(end.connections) < 2:
        pass
    with monkeypatch.context() as changed:
        changed.setitem(end.connections, 1, SimpleNamespace(recv=lost))  # type: ignore[misc]
        assert end._ended(1)
    assert ranks.dead.empty()


def test_a_process_that_is_gone_when_the_network_is_back_is_dead(ranks: Ranks) -> None:
    ranks.connect(1, 2)
    ranks.ends[1]._stop.set()
    line = ranks.ends[1].connections[0]
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()  # answers with a reset from now on
    assert ranks.dead.get(timeout=240) == (0, 1)


def test_the_kernel_waits_for_a_line_as_long_as_the_run_for_a_rank() -> None:
    ours, theirs = (
        LivenessSocket(0, 2, SECRET, lambda gone: None, 77.0),
        LivenessSocket(1, 2, SECRET, lambda gone: None, 77.0),
    )
    theirs.connect(ours.listen("127.0.0.1"))
    assert theirs.connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 77000
    theirs.stop()
    ours.stop()


def test_who_does_not_know_the_secret_speaks_for_no_rank(ranks: Ranks) -> None:
    host, port = ranks.place.split()
    for hello in (b"", b"1         " + b"0" * 64, b"nonsense"):
        with socket.create_connection((host, int(port)), timeout=240) as stranger:
            stranger.sendall(hello)
    other = LivenessSocket(1, 3, b"another secret" * 3, lambda gone: None)
    other.connect(ranks.place)
    other.stop()
    ranks.connect(2)
    ranks.cut(2)
    assert ranks.dead.get(timeout=240) == (0, 2) and ranks.dead.empty()


def test_ones_own_address_is_that_of_the_network_in_between() -> None:
    assert own_address("127.0.0.1", 29500) == "127.0.0.1"


def test_ones_own_address_may_be_of_either_family() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert own_address("::1", 29500) == "::1"
