"""The store's port is open where the ranks meet and nowhere else; who is missing is named without N² keys."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from paceline.core.errors import PacelineError
from paceline.launch.environment.device_variables import QUIET_TORCH
from paceline.launch.network import free_port
from paceline.runtime.process_group import rendezvous
from paceline.runtime.process_group.data_preparation import DataPreparation
from paceline.runtime.process_group.held_stderr import HeldStderr
from paceline.runtime.process_group.rendezvous import PREPARING, arrive, connect_store, listener
from paceline.runtime.rank_env import RankEnv
from paceline.training.run.startup import report_to_other_nodes


def listening(port: int) -> set[str]:
    """The local addresses, as /proc has them, at which somebody listens on this port."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


def env(rank: int, port: int, size: int = 2, **more: object) -> RankEnv:
    return RankEnv(
        rank=rank, local_rank=rank, world_size=size, local_world_size=size, master_port=port, **more
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["127.0.0.1", "localhost", "name.that.nobody.has"])
def test_on_one_host_the_store_listens_on_loopback_whatever_its_name(named: str) -> None:
    port = free_port()
    hosts = env(0, port, one_host=named.startswith("name"), master_addr=named)
    store = connect_store(hosts, 5)
    assert listening(port) == {"0100007F"}
    other = connect_store(env(1, port, one_host=True, master_addr=named), 5)
    store.set("a", "1")
    assert other.get("a") == b"1"


def test_an_address_of_one_interface_is_no_other_s() -> None:
    port = free_port()
    descriptor = listener("127.0.0.2", port)  # as a second interface
    try:
        assert listening(port) == {"0200007F"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8, b""], ids=["http", "closes"])
def test_another_program_at_the_port_is_one_named_error(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch writes a page of frames of C++; what others write meanwhile is kept."""
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as peer:
                        os.write(2, b"a line of others\n")
                        peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(PacelineError, match=r"runtime\.rendezvous"):
            connect_store(env(1, server.getsockname()[1]), 1.5)
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert set(capfd.readouterr().err.splitlines()) == {"a line of others"}


def test_an_address_of_no_interface_is_said_and_listened_for_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    os.close(listener("192.0.2.7", port))
    told = capsys.readouterr().err
    assert "runtime.store_open" in told and "192.0.2.7" in told


def test_the_launcher_s_word_counts_and_not_a_guess() -> None:
    base = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert RankEnv.from_environ({**base, "LOCAL_WORLD_SIZE": "2"}).meeting_host == "127.0.0.1"
    for more in (
        {},
        {"LOCAL_WORLD_SIZE": "1"},
        {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ):
        assert RankEnv.from_environ({**base, **more}).meeting_host == "node0"


class Counting:
    """A store that counts the keys it is asked for."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.keys = store, 0

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        def call(keys, *rest):  # type: ignore[no-untyped-def]
            self.keys += len(keys) if isinstance(keys, list) else 1
            return getattr(self.store, name)(keys, *rest)

        return call


def test_a_rank_tries_as_often_as_at_first_to_reach_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch alone tries ever more rarely, and misses a rank 0 that stays for seconds to say why it ends."""
    tries, real = list[float](), socket.create_connection

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        tries.append(timeout)
        if len(tries) < 30:
            raise ConnectionRefusedError
        return real(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connected)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0.01)
    port = free_port()
    store = connect_store(env(0, port), 20)
    other = connect_store(env(1, port), 20)
    other.set("here", "1")
    assert store.get("here") == b"1" and len(tries) == 30


def test_arriving_costs_each_rank_the_same_whatever_their_number() -> None:
    def cost(size: int) -> int:
        store = dist.HashStore()
        counted = [Counting(store) for _ in range(size)]
        threads = [
            threading.Thread(target=arrive, args=(counted[r], env(r, 1, size), 10, b"")) for r in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(one.keys for one in counted)

    assert abs(cost(12) - cost(2)) <= 1, "the last to come has one call more"


def test_ranks_of_different_secrets_say_so_at_once() -> None:
    store = dist.HashStore()
    host = threading.Thread(
        target=lambda: pytest.raises(PacelineError, arrive, store, env(0, 1), 3, b"a" * 16)
    )
    host.start()
    with pytest.raises(PacelineError, match="runtime.store_secret") as caught:
        arrive(store, env(1, 1), 3, b"")
    assert "a" * 16 not in str(caught.value)
    host.join()


def test_the_first_that_waits_too_long_names_the_missing_to_all_that_have_come() -> None:
    store, said = dist.HashStore(), dict[int, str]()

    def wait(rank: int, seconds: float) -> None:
        one_a_node = RankEnv(rank=rank, world_size=3, num_nodes=3, local_world_size=1)
        with pytest.raises(PacelineError) as caught:
            arrive(store, one_a_node, seconds, b"")
        said[rank] = f"{caught.value.diagnostics[0].code}: {caught.value.diagnostics[0].found}"

    threads = [threading.Thread(target=wait, args=(0, 1)), threading.Thread(target=wait, args=(1, 3600))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert said == dict.fromkeys((0, 1), "runtime.ranks_missing: missing: rank 2 on node 2")


def test_a_node_asks_for_as_many_keys_however_many_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    def cost(size: int) -> int:
        store = dist.HashStore()
        counted = Counting(store)
        waiting = [
            threading.Thread(
                target=lambda: pytest.raises(
                    PacelineError, arrive, store, env(0, 1, size), 3, b"", report_seconds=0.2
                )
            ),
            threading.Thread(
                target=lambda: pytest.raises(
                    PacelineError,
                    rendezvous.arrive,
                    counted,
                    RankEnv(1, 0, size, 1, size),
                    60,
                    b"",
                    report_seconds=1,
                )
            ),
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(240)
        return counted.keys

    few, many = cost(4), cost(400)
    assert many <= few + 5, "one report more or less"
    assert "rank 1 of 400 has waited" in (said := capsys.readouterr().err) and "for ranks 2, 3, 4" in said


def node(rank: int, port: int) -> RankEnv:
    """Return the only rank of one of two nodes."""
    return RankEnv(rank=rank, world_size=2, num_nodes=2, local_world_size=1, master_port=port)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_node_that_prepares_longer_than_the_limit_is_waited_for(
    slow: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is 3 s; the data of one node take until the other has reported its wait four times."""
    port, ready = free_port(), threading.Event()
    failed: list[BaseException] = []

    def begin(rank: int) -> None:
        try:
            with DataPreparation(node(rank, port), 30, sign_seconds=0.1) as preparation:
                if rank == slow:
                    assert ready.wait(240)
            store = preparation.store or connect_store(node(rank, port), 30)
            arrive(store, node(rank, port), 3, b"", report_seconds=1.2)
        except BaseException as error:  # noqa: BLE001 - of a thread, for the test
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    reports = ""
    while reports.count("has waited") < 4 and not failed:
        time.sleep(0.05)
        reports += capsys.readouterr().err
    ready.set()
    for thread in threads:
        thread.join(240)
    assert not failed and f"rank {1 - slow} of 2 has waited" in reports


def test_a_node_that_stops_preparing_is_waited_for_no_longer() -> None:
    port = free_port()
    with DataPreparation(node(0, port), 30, sign_seconds=0.05) as preparation:
        store = preparation.store
        assert store is not None
        with DataPreparation(node(1, port), 30, sign_seconds=0.05):
            while store.add(PREPARING, 0) < 3:  # both give signs
                time.sleep(0.05)
    with pytest.raises(PacelineError, match=r"runtime\.ranks_missing") as caught:
        arrive(store, node(0, port), 1, b"", report_seconds=0.2)
    assert caught.value.diagnostics[0].found == "missing: rank 1 on node 1"


def test_the_others_hear_why_the_host_of_the_store_has_no_data() -> None:
    port, heard = free_port(), list[str]()

    def wait() -> None:
        with pytest.raises(PacelineError) as caught:
            arrive(connect_store(node(1, port), 30), node(1, port), 30, b"")
        heard.append(caught.value.diagnostics[0].what)

    with DataPreparation(node(0, port), 30) as preparation:
        other = threading.Thread(target=wait)
        other.start()
        report_to_other_nodes(node(0, port), {}, ValueError("a converter of the user"), preparation.store)
    other.join(240)
    assert "rank 0 was refused" in heard[0] and "a converter of the user" in heard[0]


def test_two_that_hold_stderr_leave_it_as_it_was(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of a rank may connect at once; whoever releases last must not restore the other's file."""
    for name, level in QUIET_TORCH.items():
        monkeypatch.setenv(name, level)
    for first, second in ((0, 1), (1, 0)):
        held = [HeldStderr(), HeldStderr()]
        for one in held:
            one.hold()
        os.write(2, b"held ")
        held[first].release()
        held[second].release()
        os.write(2, b"written\n")
    assert capfd.readouterr().err == "held written\n" * 2


def test_a_node_is_ready_though_rank_0_does_not_answer() -> None:
    """Its thread that gives signs does not go on trying to connect beside the rank itself."""
    with DataPreparation(node(1, free_port()), 3600, sign_seconds=0.05) as preparation:
        time.sleep(0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "paceline-preparing"]
    assert preparation.store is None
