"""What the nodes send each other: signed JSON over TCP, bounded in size and time."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar, get_type_hints

from paceline.core.diagnostics import Diagnostic, errors, render_all
from paceline.core.json_types import Json, JsonObject, as_object, parse_json
from paceline.core.security.signatures import signed, unverified, verified
from paceline.plan.plan_json import from_json

T = TypeVar("T")
_SCALARS = (str, int, float, bool)


def received(kind: type[T], data: JsonObject) -> T:
    """Return the dataclass that another node has sent. Raises OSError for anything else."""
    hints = get_type_hints(kind, localns={"JsonObject": dict})
    try:
        for name, value in data.items():
            hint = hints.get(name)
            if hint in _SCALARS and not isinstance(value, (int, float) if hint is float else hint):
                raise TypeError(f"{name}: {value!r}"[:100])
        return from_json(kind, data)
    except (TypeError, ValueError, AttributeError) as error:
        raise OSError(f"not a message of this version: {error}"[:200]) from error


@dataclass(frozen=True)
class Hello:
    """A node's first message: ``address``, ``port``: where it listens for its partners."""

    rank: int
    nnodes: int
    host: str
    address: str
    port: int

    @property
    def label(self) -> str:
        """The node's name in findings."""
        return node_name(self.rank, self.host)


def node_name(rank: int, host: str) -> str:
    """Return a node's name in findings."""
    return f"node {rank} ({host[:64]})"


@dataclass(frozen=True)
class NodeRequest:
    """NodeServer 0's request, or its verdict.

    - ``kind``: what to do (``node.HANDLERS``), or ``verdict``
    - ``partners``: the nodes to try
    - ``size``: bytes to send, or ranks to start
    - ``token``: names the files of this check in the run's folder, or the device of the ranks
    - ``port``: where the ranks meet
    - ``verdict``: the report
    """

    kind: str
    partners: tuple[Hello, ...] = ()
    size: int = 0
    token: str = ""
    port: int = 0
    verdict: NodesVerdict | None = None


@dataclass(frozen=True)
class NodesVerdict:
    """The report that all nodes print: ``lines`` about nodes and links, and findings as JSON."""

    lines: tuple[str, ...] = ()
    findings: tuple[JsonObject, ...] = ()

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return the findings."""
        return tuple(Diagnostic.from_json(finding) for finding in self.findings)

    def text(self) -> str:
        """Return the lines about nodes and links, and the findings."""
        findings = self.diagnostics()
        return "\n".join([*self.lines, render_all(findings) if findings else "no problems found"])

    def to_json(self) -> JsonObject:
        """Return the verdict as plain JSON types."""
        healthy = not errors(self.diagnostics())
        return {"healthy": healthy, "lines": list(self.lines), "findings": list(self.findings)}


@dataclass(frozen=True)
class ClockReading:
    """The answer to ``clock``: seconds since 1970."""

    now: float


@dataclass(frozen=True)
class Trial:
    """One connection from this node to ``rank``: its error (empty: it works), and its round trip.

    ``resolved``: the addresses that the partner's host name has here; ``unresolved``: why it has none.
    """

    rank: int
    error: str = ""
    round_trip: float = 0.0
    resolved: tuple[str, ...] = ()
    unresolved: str = ""


@dataclass(frozen=True)
class Trials:
    """The answer to ``connect``."""

    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class SentBytes:
    """The answer to ``transfer``: bytes a second to ``rank``; ``error``: why there are none.

    ``arrived``: bytes that arrived in any case.
    """

    rank: int
    speed: float = 0.0
    arrived: int = 0
    error: str = ""


@dataclass(frozen=True)
class Transfers:
    """The answers of one round."""

    transfers: tuple[SentBytes, ...] = ()


@dataclass(frozen=True)
class FolderView:
    """The answer to ``look``: the ranks whose tokens this node sees, and whether node 0's lock holds here."""

    sees: tuple[int, ...] = ()
    excluded: bool = True


@dataclass(frozen=True)
class RanksAnswer:
    """The answer to ``ranks``: lines and findings of this node's ranks in an all-reduce of all ranks.

    ``failures``: ranks that ended early.
    """

    lines: tuple[str, ...] = ()
    findings: tuple[JsonObject, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileDigest:
    """A file: the config's ``key`` that names it, its name below, its size, and a hash of it or of samples.

    ``digest`` is empty where there was no time for it.
    """

    key: str
    name: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """What a node reports of itself; compared over the nodes.

    - ``versions``: by package; ``environment``: variables that matter
    - ``config``: the values that decide the result, by key, shortened
    - ``files``: those that the config names
    - ``network``: interface, its network, MTU and speed, by name
    - ``cards``: number and names; ``topology``: how they are joined
    - ``own_name``: the addresses of the own host name here; ``address``: the one towards node 0
    - ``device``, ``ranks``: what the plan starts here
    - ``line``: the node in a line; ``findings``: those about this node alone
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileDigest, ...] = ()
    network: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    own_name: tuple[str, ...] = ()
    address: str = ""
    device: str = "cpu"
    ranks: int = 1
    line: str = ""
    findings: tuple[JsonObject, ...] = ()


LIMIT_BYTES = 4 << 20  # of a message
_GREETING_BYTES = 16 << 10  # of one whose sender is not known yet
_NONCE = 32  # hexadecimal digits
_HEAD = 4  # bytes of a message's length
REFUSED = b"another secret"
_SERVER, _CLIENT = "server", "client"


class NotOurs(OSError):
    """The other side has no valid signature. ``claim``: what it calls itself; anyone may have written it."""

    def __init__(self, claim: JsonObject) -> None:
        super().__init__("a message without a valid signature")
        self.claim = claim


class Wire:
    """A connection whose two sides have greeted each other. Its errors are OSError (TimeoutError too)."""

    def __init__(self, connection: socket.socket, secret: bytes, nonces: str, sides: tuple[str, str]) -> None:
        self.connection, self._secret, self._name = connection, secret, f"paceline/doctor/{nonces}"
        self._mine, self._theirs = sides
        self._sent = self._received = 0

    def send(self, message: Json, seconds: float) -> None:
        text = json.dumps(message, ensure_ascii=True)
        key = f"{self._mine}/{self._sent}"
        self._sent += 1
        _write(self.connection, signed(self._secret, self._name, key, text).encode(), seconds)

    def receive(self, seconds: float, limit: int = LIMIT_BYTES) -> JsonObject:
        """Return the next message. Raises NotOurs for one that the other side has not signed."""
        value = _read(self.connection, seconds, limit)
        if value == REFUSED:
            raise NotOurs({})
        text = verified(self._secret, self._name, f"{self._theirs}/{self._received}", value)
        if text is None or not text.startswith("{"):
            raise NotOurs(_object(unverified(value)))
        self._received += 1
        return _object(text)

    def request(self, message: Json, seconds: float) -> JsonObject:
        """Send ``message`` and return the answer."""
        deadline = time.monotonic() + seconds
        self.send(message, seconds)
        return self.receive(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def greet(connection: socket.socket, secret: bytes, hello: Json, seconds: float) -> Wire:
    """Open the conversation as the side that has connected; ``hello`` is this side's first message."""
    theirs, mine = (
        _read(connection, seconds, _NONCE).decode("ascii", "replace"),
        secrets.token_hex(_NONCE // 2),
    )
    _write(connection, mine.encode(), seconds)
    wire = Wire(connection, secret, f"{theirs}/{mine}", (_CLIENT, _SERVER))
    wire.send(hello, seconds)
    return wire


def welcome(connection: socket.socket, secret: bytes, seconds: float) -> tuple[Wire, JsonObject]:
    """Open the conversation as the side that listens; return it with the other side's first message.

    Raises NotOurs for another secret; the other side gets to know.
    """
    mine = secrets.token_hex(_NONCE // 2)
    _write(connection, mine.encode(), seconds)
    theirs = _read(connection, seconds, _NONCE).decode("ascii", "replace")
    wire = Wire(connection, secret, f"{mine}/{theirs}", (_SERVER, _CLIENT))
    try:
        return wire, wire.receive(seconds, _GREETING_BYTES)
    except NotOurs:
        _write(connection, REFUSED, seconds)
        raise


def _object(text: str) -> JsonObject:
    try:
        return as_object(parse_json(text.encode()))
    except ValueError:
        return {}


def _write(connection: socket.socket, data: bytes, seconds: float) -> None:
    connection.settimeout(seconds)
    connection.sendall(len(data).to_bytes(_HEAD, "big") + data)


def _read(connection: socket.socket, seconds: float, limit: int) -> bytes:
    deadline = time.monotonic() + seconds
    size = int.from_bytes(_exactly(connection, _HEAD, deadline), "big")
    if size > limit:
        raise OSError(f"a message of {size} bytes")
    return _exactly(connection, size, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Return ``size`` bytes. Raises TimeoutError after ``deadline``, and OSError if the other side ends."""
    parts = bytearray()
    while len(parts) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the other side has closed the connection")
        parts += part
    return bytes(parts)
