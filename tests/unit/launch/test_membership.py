"""Node 0 decides which nodes a start has, and tells the others; nobody else is let in."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from paceline.config.sections.launch import LaunchSection
from paceline.launch import codes
from paceline.launch.elastic_start import ElasticStart
from paceline.launch.network import free_port
from paceline.launch.supervision.membership import Ended, FirstNode, Lineup, OtherNode
from paceline.launch.supervision.restarts import RunEnd

SECRET = b"s" * 32
FAILED, ECHO = RunEnd(1, "data.changed", 7, ""), RunEnd(76, "", 7, "")


class Job:
    """Node 0 of up to four, at least two, and the others' launchers."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", free_port())
        self.first = FirstNode(self.address, SECRET, 2, 4, 0.5)
        self.others: dict[int, OtherNode] = {}
        self.results: dict[int, Lineup | Ended] = {}
        self.notes: list[str] = []

    def come(self, *nodes: int, secret: bytes = SECRET) -> list[threading.Thread]:
        """These nodes' launchers wait for the next start."""

        def wait(node: int) -> None:
            other = self.others.setdefault(node, OtherNode(self.address, secret, node))
            self.results[node] = other.line_up(self.notes.append, lambda: False, 30)

        threads = [threading.Thread(target=wait, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        return threads

    def start(self, *nodes: int, resumes: bool = False) -> Lineup | Ended:
        threads = self.come(*nodes)
        result = self.first.line_up(self.notes.append, lambda: False, resumes=resumes)
        if isinstance(result, Ended):
            self.first.close(result)
        for thread in threads:
            thread.join(60)
        return result

    def end(self, **ends: RunEnd) -> list[RunEnd]:
        """The start ends on ``n1``, ``n2`` … so; the launcher of a node that is not named is gone."""
        for node in list(self.others):
            if f"n{node}" in ends:
                self.others[node].report_end(ends[f"n{node}"])
            else:
                self.others.pop(node).close()
        return self.first.ends(30, lambda: False)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.first.close(Ended(1))
    for other in made.others.values():
        other.close()


def test_all_nodes_go_in_the_order_of_their_ranks(job: Job) -> None:
    assert job.start(3, 1, 2) == Lineup((0, 1, 2, 3))
    assert set(job.results.values()) == {Lineup((0, 1, 2, 3))}
    assert job.end(n1=ECHO, n2=FAILED, n3=ECHO) == [ECHO, FAILED, ECHO]
    assert job.first.count() == []
    assert job.start(1, 2, 3, resumes=True) == Lineup((0, 1, 2, 3), True)


def test_without_the_node_that_is_gone_and_with_it_when_it_is_back(job: Job) -> None:
    job.start(1, 2, 3)
    assert job.end(n1=ECHO, n3=ECHO) == [ECHO, ECHO] and job.first.misses()
    assert job.start(1, 3, resumes=True) == Lineup((0, 1, 3), True) == job.results[3]
    assert not job.first.grows()
    [waits] = job.come(2)
    deadline = time.monotonic() + 60
    while not job.first.grows():
        assert time.monotonic() < deadline
        job.first.poll()
    stopped = RunEnd(75, "", 9, "step-9")
    assert job.end(n1=stopped, n2=stopped, n3=stopped) == [stopped, stopped]
    assert job.start(1, 3, resumes=True) == Lineup((0, 1, 2, 3), True)
    waits.join(60)
    assert job.results[2] == Lineup((0, 1, 2, 3), True)


def test_a_node_that_fails_twice_is_told_and_left_out(job: Job) -> None:
    for notes in ([], ["node 2"]):
        job.start(1, 2, 3)
        job.end(n1=ECHO, n2=FAILED, n3=ECHO)
        found = job.first.count()
        assert [finding.what.split(" (")[0] for finding in found] == notes
    result = job.start(1, 2, 3)
    assert isinstance(result, Lineup) and result.nodes == (0, 1, 3)
    told = job.results[2]
    assert isinstance(told, Ended) and told.finding is not None
    assert (told.code, told.finding.code) == (1, "launch.node_left_out")
    # Its launcher is started again: it takes part, and one failure more is enough
    job.others.pop(2).close()
    [waits] = job.come(2)
    deadline = time.monotonic() + 60
    while not job.first.grows():
        assert time.monotonic() < deadline
        job.first.poll()
    job.end(n1=ECHO, n3=ECHO, n2=ECHO)
    job.start(1, 3)
    waits.join(60)
    assert job.first.last.nodes == (0, 1, 2, 3)
    job.end(n1=ECHO, n2=FAILED, n3=ECHO)
    assert len(job.first.count()) == 1


def test_with_too_few_all_end_for_the_same_reason(job: Job) -> None:
    job.start(1, 2, 3)
    job.end()
    result = job.start()
    assert isinstance(result, Ended) and result.finding is not None
    assert result.finding.code == "launch.too_few_nodes" and "node 1 (" in result.finding.found


def test_the_cause_that_node_0_ends_with_reaches_the_others(job: Job) -> None:
    job.start(1, 2, 3)
    job.end(n1=ECHO, n2=ECHO, n3=ECHO)
    ended = Ended(2, codes.LAUNCH_RESTARTS_USED("launch.max_restarts", "x", count=3))
    threads = job.come(1, 2, 3)
    job.first.close(ended)
    for thread in threads:
        thread.join(60)
    assert list(job.results.values()) == [ended] * 3


def test_when_node_0_is_gone_the_others_say_so(job: Job) -> None:
    [thread] = job.come(1)
    deadline = time.monotonic() + 60
    while 1 not in job.first.nodes:
        assert time.monotonic() < deadline
        job.first.poll()
    job.first.nodes.pop(1).link.socket.close()
    thread.join(60)
    gone = job.results[1]
    assert isinstance(gone, Ended) and gone.finding is not None
    assert (gone.code, gone.finding.code) == (76, "launch.first_node_gone")


@pytest.mark.parametrize("stranger", ["another secret", "no signature", "noise"])
def test_who_does_not_have_the_secret_is_no_node(stranger: str, job: Job) -> None:
    if stranger == "another secret":
        job.others[1] = OtherNode(job.address, b"x" * 32, 1)
        threads = job.come(1)
    else:
        threads = []
    with closing(socket.create_connection(job.address)) as link:
        line = json.dumps(["ready", 2, "host"]) if stranger == "no signature" else "\x00" * 300_000
        link.sendall(line.encode() + b"\n")
        result = job.start()
        assert isinstance(result, Ended) and job.first.nodes == {}
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("signalled", [True, False])
def test_a_signal_while_the_run_saves_for_a_node_that_is_back_stops_it(
    signalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_STORE_SECRET", SECRET.decode())
    monkeypatch.setattr("paceline.launch.elastic_start.MEET_SECONDS", 1.0)  # node 1 is away at first
    port = free_port()
    launch = LaunchSection(
        nodes="1:2", nnodes=2, master_addr="127.0.0.1", master_port=port - 1, rejoin_timeout=1
    )
    other, sizes, threads = OtherNode(("127.0.0.1", port), SECRET, 1), list[int](), list[threading.Thread]()

    def attempt(lineup: Lineup, stops: Callable[[], bool]) -> RunEnd:
        sizes.append(len(lineup.nodes))
        if len(sizes) > 1:
            other.report_end(RunEnd(0, "", 9, "step-9"))
            return RunEnd(0, "", 9, "step-9")
        threads.append(threading.Thread(target=lambda: other.line_up(notes.append, lambda: False, 30)))
        threads[0].start()
        while not stops():
            time.sleep(0.01)
        return RunEnd(75, "", 5, "step-5", stopped=True, signalled=signalled)

    notes: list[str] = []
    start = ElasticStart(launch, attempt, lambda: False, notes.append, lambda finding: None)
    with closing(other):
        code = start.run()
        threads[0].join(30)
    assert (code, sizes) == ((75, [1]) if signalled else (0, [1, 2]))
