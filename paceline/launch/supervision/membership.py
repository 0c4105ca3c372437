"""Which nodes a start has, where ``launch.nodes`` allows fewer: node 0's launcher asks and decides.

    node → node 0   ["ready", node, host]; after each start ["ended", code, error, step, saved, stopped]
    node 0 → node   ["go", [nodes], resume]: start with these, in this order; or ["end", code, finding]

The launchers meet at ``launch.master_port`` + 1 of node 0, which must live. Each line carries a signature
made with the run's secret over its number and a nonce of node 0. No thread: node 0 looks between its work.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.json_types import Json
from paceline.core.security.signatures import signed, verified
from paceline.launch import codes
from paceline.launch.supervision.restarts import RunEnd

REPORT_SECONDS = 30.0  # how often a node says for whom it waits
FAILURES = 2  # of a node, until it is left out
_LINE_BYTES = 64 * 1024
_RETRY_SECONDS, _LOOK_SECONDS = 1.0, 0.1
_NONCE_BYTES = 16
_STRANGERS = 256  # connections that have not said yet who they are

Message = Sequence[Json]


@dataclass(frozen=True)
class Lineup:
    """The nodes of a start, by their ``launch.node_rank``; ``resumes``: it goes on from a checkpoint."""

    nodes: tuple[int, ...]
    resumes: bool = False


@dataclass(frozen=True)
class Ended:
    """No further start: the exit code, and why, if it is not this node's own end."""

    code: int
    finding: Diagnostic | None = None


class Link:
    """Signed lines over a socket; ``nonce``: node 0's."""

    def __init__(self, link: socket.socket, secret: bytes, nonce: str, side: str) -> None:
        self.socket, self._secret, self._nonce = link, secret, nonce
        self._mine, self._theirs = side, {"node": "first", "first": "node"}[side]
        self._sent, self._read, self._rest = 0, 0, b""

    def send(self, message: Message) -> bool:
        """Send one message; return whether the other end is there."""
        # Side and number are signed: no line can be repeated, reordered or sent back.
        text = signed(self._secret, self._nonce, f"{self._mine}/{self._sent}", json.dumps(message))
        self._sent += 1
        try:
            self.socket.sendall(text.encode() + b"\n")
        except OSError:
            return False
        return True

    def messages(self) -> list[Message] | None:
        """Return what has arrived; None once the other end is gone, or for what no node of the run sends."""
        try:
            block = self.socket.recv(_LINE_BYTES)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + block).split(b"\n")
        # An empty block is the end; a line without an end would fill the memory.
        if not block or len(self._rest) > _LINE_BYTES:
            return None
        found = list[Message]()
        for line in lines:
            text = verified(self._secret, self._nonce, f"{self._theirs}/{self._read}", line)
            self._read += 1
            try:
                found.append(json.loads(text or ""))
            except ValueError:
                return None
        return found


@dataclass
class _Node:
    """A node whose launcher is connected. ``end``: of its part of the last start."""

    link: Link
    host: str = ""
    end: RunEnd | None = None
    ready: bool = False


class FirstNode:
    """Node 0's part. ``least``, ``most``: nodes of a start; ``patience``: seconds to wait for one gone."""

    def __init__(
        self, address: tuple[str, int], secret: bytes, least: int, most: int, patience: float
    ) -> None:
        self.least, self.most, self._patience, self._secret = least, most, patience, secret
        self.nodes: dict[int, _Node] = {}
        self._new: list[Link] = []
        self._failures: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self.last = Lineup(tuple(range(most)))
        try:
            self._server = socket.create_server(address)
        except OSError as error:
            reason = f"{address[0]}:{address[1]}: {error.strerror or error}"
            raise ConfigError(codes.LAUNCH_NODES_PORT("launch.master_port", reason)) from error
        self._server.setblocking(False)

    def poll(self) -> None:
        """Let nodes in, and read what they have sent."""
        with suppress(OSError):
            while True:
                link, _ = self._server.accept()
                nonce = secrets.token_hex(_NONCE_BYTES)
                link.sendall(nonce.encode())
                link.setblocking(False)
                self._new.append(Link(link, self._secret, nonce, "first"))
                # The oldest go: whoever opens connections without a word must not lock the nodes out.
                for stranger in self._new[:-_STRANGERS]:
                    stranger.socket.close()  # its next look ends it
        for new in list(self._new):
            messages = new.messages()
            match messages:
                case None:
                    self._new.remove(new)
                    new.socket.close()
                case [["ready", int(number), str(host)]] if 0 < number < self.most:
                    self._new.remove(new)
                    self._drop(number)
                    self.nodes[number] = _Node(new, host[:64], ready=True)
                    self._hosts[number] = host[:64]
                    if self._failures.get(number, 0) >= FAILURES:
                        self._failures[number] = FAILURES - 1  # it comes back, with one chance more
        for number, node in list(self.nodes.items()):
            messages = node.link.messages()
            if messages is None:
                self._drop(number)
            for message in messages or ():
                match message:
                    case ["ended", int(code), str(error), int(step), str(saved), bool(stop), bool(signal)]:
                        # Its ranks have ended, so it could start again.
                        node.end, node.ready = RunEnd(code, error, step, saved, stop, signal), True

    def grows(self) -> bool:
        """Whether a node waits that the start under way does without."""
        return any(node.ready and number not in self.last.nodes for number, node in self.nodes.items())

    def misses(self) -> bool:
        """Whether a node of the start is gone."""
        return any(number and number not in self.nodes for number in self.last.nodes)

    def ends(self, seconds: float, stops: Callable[[], bool]) -> list[RunEnd]:
        """Return how the start ended on the other nodes, of those that say so in time."""
        deadline = time.monotonic() + seconds
        others = [number for number in self.last.nodes if number]
        while time.monotonic() < deadline and not stops():
            self.poll()
            if all(number not in self.nodes or self.nodes[number].end for number in others):
                break
            time.sleep(_LOOK_SECONDS)
        return [end for number in others if number in self.nodes and (end := self.nodes[number].end)]

    def count(self) -> list[Diagnostic]:
        """Count whose failure ended the last start; leave out whom it was too often; return notes."""
        notes = []
        for number in self.last.nodes:
            node = self.nodes.get(number)
            echoes = (ExitCode.PEER_FAILED, ExitCode.PEER_SILENT, ExitCode.OK, ExitCode.STOPPED)
            if number and (node is None or node.end is None or node.end.code not in echoes):
                self._failures[number] = self._failures.get(number, 0) + 1
                if self._failures[number] >= FAILURES:
                    finding = codes.LAUNCH_NODE_LEFT_OUT(
                        "launch.nodes", node=self.name(number), failures=FAILURES
                    )
                    notes.append(finding)
                    self.send_end(number, Ended(int(ExitCode.FAILED), finding))
        return notes

    def line_up(
        self,
        report: Callable[[str], None],
        stops: Callable[[], bool],
        *,
        resumes: bool,
        patience: float = 0.0,
    ) -> Lineup | Ended:
        """Wait for the nodes of the next start, and tell them to go."""
        begun = reported = time.monotonic()
        patience = patience or self._patience
        expected = [node for node in range(1, self.most) if self._failures.get(node, 0) < FAILURES]
        while True:
            self.poll()
            here = [number for number in expected if number in self.nodes and self.nodes[number].ready]
            missing, now = [number for number in expected if number not in here], time.monotonic()
            # All that are expected, or as many as have come in time.
            if not missing or now - begun > patience:
                break
            if stops():
                return Ended(int(ExitCode.STOPPED))
            if now - reported >= REPORT_SECONDS:
                reported, names = now, ", ".join(map(self.name, missing))
                report(f"node 0 has waited {now - begun:.0f} s for {names} (up to {patience:.0f} s)")
            time.sleep(_LOOK_SECONDS)
        if len(here) + 1 < self.least:
            names = ", ".join(map(self.name, missing)) or "those left out"
            return Ended(
                int(ExitCode.PEER_FAILED), codes.LAUNCH_TOO_FEW_NODES("launch.nodes", names, least=self.least)
            )
        # Node 0 is always the first: it holds the store and the meeting place.
        self.last = Lineup((0, *here), resumes)
        for number in here:
            node = self.nodes[number]
            node.ready, node.end = False, None
            node.link.send(["go", list(self.last.nodes), resumes])
        return self.last

    def send_end(self, number: int, ended: Ended) -> None:
        """Tell a node that it does not start again."""
        if number in self.nodes:
            finding = ended.finding.to_json() if ended.finding else None
            self.nodes[number].link.send(["end", ended.code, finding])
            self._drop(number)

    def close(self, ended: Ended) -> None:
        """Tell all nodes that the run is over."""
        for number in list(self.nodes):
            self.send_end(number, ended)
        self._server.close()

    def name(self, number: int) -> str:
        """Return how messages name a node."""
        return f"node {number}" + (f" ({self._hosts[number]})" if number in self._hosts else "")

    def _drop(self, number: int) -> None:
        if number in self.nodes:
            self.nodes.pop(number).link.socket.close()


class OtherNode:
    """Another node's part; it connects when it first waits."""

    def __init__(self, address: tuple[str, int], secret: bytes, node: int) -> None:
        self._address, self._secret, self._node = address, secret, node
        self._link: Link | None = None

    def report_end(self, end: RunEnd) -> None:
        """Tell node 0 how this node's part of the start ended."""
        if self._link is not None:
            self._link.send(["ended", *astuple(end)])

    def line_up(
        self, report: Callable[[str], None], stops: Callable[[], bool], patience: float
    ) -> Lineup | Ended:
        """Wait for node 0's word."""
        begun = reported = time.monotonic()
        while not stops():
            now = time.monotonic()
            if self._link is None:
                if now - begun > patience or not self._connect():
                    if now - begun > patience:
                        break
                    time.sleep(_RETRY_SECONDS)
            else:
                messages = self._link.messages()
                if messages is None:
                    break
                for message in messages:
                    match message:
                        case ["go", [*nodes], bool(resumes)]:
                            return Lineup(tuple(int(str(node)) for node in nodes), resumes)
                        case ["end", int(code), finding]:
                            known = Diagnostic.from_json(finding) if isinstance(finding, Mapping) else None
                            return Ended(code, known)
            if now - reported >= REPORT_SECONDS:
                reported = now
                where = f"node 0 at {self._address[0]}:{self._address[1]}"
                report(
                    f"node {self._node} has waited {now - begun:.0f} s for {where} (up to {patience:.0f} s)"
                )
        if stops():
            return Ended(int(ExitCode.STOPPED))
        where = f"{self._address[0]}:{self._address[1]}"
        return Ended(int(ExitCode.PEER_FAILED), codes.LAUNCH_FIRST_NODE_GONE("launch.master_addr", where))

    def _connect(self) -> bool:
        try:
            link = socket.create_connection(self._address, timeout=_RETRY_SECONDS)
            nonce = b""
            while len(nonce) < 2 * _NONCE_BYTES:
                part = link.recv(2 * _NONCE_BYTES - len(nonce))
                if not part:
                    raise OSError("closed")
                nonce += part
        except OSError:
            return False
        # Reads then return soon, and the loop looks at its clock and at stop requests.
        link.settimeout(_LOOK_SECONDS)
        self._link = Link(link, self._secret, nonce.decode("ascii", "replace"), "node")
        return self._link.send(["ready", self._node, socket.gethostname()])

    def close(self) -> None:
        """Leave."""
        if self._link is not None:
            self._link.socket.close()
