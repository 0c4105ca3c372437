"""Signed JSON messages over a TCP connection, bounded in size and time.

Both sides send a nonce first. Each message is signed with the run's secret (``core.security.signatures``)
over the two nonces, its sender and its number. One that was recorded, reordered or sent back is refused.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import suppress

from paceline.core.json_types import Json, JsonObject, as_object, parse_json
from paceline.core.security.signatures import signed, unverified, verified

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
    """Open the conversation as the one that has connected; ``hello`` is this side's first message."""
    theirs, mine = (
        _read(connection, seconds, _NONCE).decode("ascii", "replace"),
        secrets.token_hex(_NONCE // 2),
    )
    _write(connection, mine.encode(), seconds)
    wire = Wire(connection, secret, f"{theirs}/{mine}", (_CLIENT, _SERVER))
    wire.send(hello, seconds)
    return wire


def welcome(connection: socket.socket, secret: bytes, seconds: float) -> tuple[Wire, JsonObject]:
    """Open the conversation as the one that listens; return it with the other side's first message.

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
