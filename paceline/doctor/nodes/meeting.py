"""How the nodes find each other: node 0 listens at the address and port of the run; the others connect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.messages import (
    Hello,
    NodeRequest,
    NodesVerdict,
    NotOurs,
    Wire,
    greet,
    node_name,
    received,
    welcome,
)
from paceline.plan.plan_json import to_json
from paceline.runlog.redact import printable

GREET_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_BACKLOG = 1024
_STRANGERS = 16  # findings about callers without our secret


class Meeting:
    """NodeServer 0's side: the nodes that have come, and findings about those that were turned away."""

    def __init__(self, server: socket.socket, secret: bytes, mine: Hello) -> None:
        self._server, self._secret, self._mine = server, secret, mine
        self._place = ":".join(map(str, server.getsockname()[:2]))
        self._change = threading.Condition()
        self._wires: dict[int, Wire] = {}
        self._hellos: dict[int, Hello] = {mine.rank: mine}
        self._refused: dict[int, Diagnostic] = {}
        self._arrived, self._closed = 0, False

    def gather(self, seconds: float) -> None:
        """Wait until every node has come, or been turned away, for at most ``seconds``."""
        threading.Thread(target=self._accept, name="paceline-meeting", daemon=True).start()
        with self._change:
            self._change.wait_for(lambda: self._arrived >= self._mine.nnodes - 1, seconds)
            self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes up the thread that accepts
        self._server.close()

    @property
    def hellos(self) -> Mapping[int, Hello]:
        """The nodes that take part, by rank, node 0 too."""
        return dict(sorted(self._hellos.items()))

    def findings(self, seconds: float) -> list[Diagnostic]:
        """Return what was wrong with those that came, and who did not come within ``seconds``."""
        turned_away = list(self._refused.values())
        others = {rank for finding in turned_away for rank in finding.evidence.get("ranks", ())}
        absent = [r for r in range(self._mine.nnodes) if r not in self._hellos and r not in others]
        if absent:
            turned_away.append(
                codes.NODE_MISSING(
                    ", ".join(f"node {rank}" for rank in absent[:16]) + (" …" if len(absent) > 16 else ""),
                    f"{len(self._hellos)} of {self._mine.nnodes} nodes came within {seconds:.0f} s",
                    address=self._place,
                    evidence={"ranks": absent},
                )
            )
        return turned_away

    def request_all(
        self, requests: Mapping[int, NodeRequest], seconds: float, local: Callable[[NodeRequest], JsonObject]
    ) -> tuple[dict[int, JsonObject], list[int]]:
        """Return the answers by rank, and the ranks that are lost: they answer nothing any more.

        ``local`` answers on node 0.
        """
        lost: list[int] = []

        def answer(rank: int) -> tuple[int, JsonObject] | None:
            if rank == self._mine.rank:
                return rank, local(requests[rank])
            try:
                return rank, self._wires[rank].request(to_json(requests[rank]), seconds)
            except OSError:
                lost.append(rank)
                return None

        ranks = [rank for rank in requests if rank in self._hellos]
        with ThreadPoolExecutor(max(1, len(ranks))) as pool:
            answers = dict(filter(None, pool.map(answer, ranks)))
        for rank in lost:
            self._wires.pop(rank).close()
            del self._hellos[rank]
        return answers, lost

    def publish(self, verdict: NodesVerdict) -> None:
        """Send the verdict to every node that is still there."""
        message = to_json(NodeRequest("verdict", verdict=verdict))
        for wire in self._wires.values():
            with suppress(OSError):  # it is gone, and the others need the verdict all the same
                wire.send(message, GREET_SECONDS)

    def _accept(self) -> None:
        self._server.listen(_BACKLOG)
        while True:
            try:
                connection, address = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(connection, str(address[0])), daemon=True).start()

    def _meet(self, connection: socket.socket, address: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            wire, message = welcome(connection, self._secret, GREET_SECONDS)
            hello = received(Hello, message)
        except NotOurs as stranger:
            connection.close()
            self._note_stranger(stranger.claim, address)
            return
        except OSError:  # no node: something that looks at open ports
            connection.close()
            return
        with self._change:
            refusal = self._wrong(hello)
            if refusal is None:
                self._wires[hello.rank], self._hellos[hello.rank] = wire, hello
            else:
                self._refused.setdefault(len(self._refused), refusal)
            self._arrived += 1
            self._change.notify()
        if refusal is not None:
            verdict = NodesVerdict(findings=(refusal.to_json(),))
            with suppress(OSError):
                wire.send(to_json(NodeRequest("verdict", verdict=verdict)), GREET_SECONDS)
            wire.close()

    def _wrong(self, hello: Hello) -> Diagnostic | None:
        mine = self._mine
        if hello.nnodes != mine.nnodes:
            return codes.NODE_OTHER_NNODES(
                hello.label,
                f"{hello.nnodes} there, {mine.nnodes} on {mine.label}",
                evidence={"ranks": [hello.rank]},
            )
        if (there := self._hellos.get(hello.rank)) is not None:
            return codes.NODE_RANK_TWICE(
                f"{there.host} ({there.address}) and {hello.host} ({hello.address})",
                f"--node-rank {hello.rank} on both",
                rank=hello.rank,
            )
        if self._closed:
            return codes.NODE_LATE(hello.label)
        return None

    def _note_stranger(self, claim: JsonObject, address: str) -> None:
        """Note a caller with another secret. It may be anyone, so what it calls itself is only a hint."""
        try:
            hello = received(Hello, claim)
        except OSError:
            return
        with self._change:
            if hello.rank not in range(1, self._mine.nnodes) or len(self._refused) >= _STRANGERS:
                return
            name = node_name(hello.rank, printable(hello.host))
            self._refused.setdefault(
                -hello.rank,
                codes.NODE_OTHER_SECRET(f"{name}, from {address}", evidence={"ranks": [hello.rank]}),
            )
            self._arrived += 1
            self._change.notify()


def join(place: tuple[str, int], secret: bytes, mine: Hello, seconds: float) -> Wire:
    """Connect to node 0. Raises the last OSError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection(place, max(0.1, min(GREET_SECONDS, left)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return greet(connection, secret, to_json(mine), GREET_SECONDS)
        except OSError:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise
        time.sleep(_RETRY_SECONDS)
