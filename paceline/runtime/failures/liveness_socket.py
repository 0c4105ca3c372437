"""A connection from every rank to rank 0 that the kernel closes when a process dies, whatever the backend.

NCCL does not report that a rank is gone, and heartbeats cannot distinguish a dead process from a stopped one.
An open connection can. The kernel closes a dead process's connection at once, or resets it when the network
is back. For a stopped process the kernel keeps answering. A machine that does not answer proves nothing: the
network may be down for a minute. So a connection that times out is just dropped, and the rank's silence
counts by the run's own limit (``last_heard.py``). A rank that connects proves with the run's secret that it
is one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import threading
from collections.abc import Callable

_PROBE_AFTER, _PROBE_EVERY, _MOST_PROBES = 4, 15, 127  # seconds, seconds, times (Linux's most)
#: The other machine, or its process, says that the connection is no more; all else may be the network.
_CUT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_BYE, _DIGEST, _NONCE = b"bye\n", 64, 32
_HELLO_SECONDS, _TICK_SECONDS = 10.0, 0.5
_LONGEST = 256

OnDeath = Callable[[int], None]


class LivenessSocket:
    """One end of the lines. ``on_death(rank)`` is called, from a separate thread, for a connection that was
    cut without a farewell. Rank 0 has a connection to each other rank; the others have one to rank 0. An
    outage of less than ``patience`` seconds leaves the lines open.
    """

    def __init__(
        self, rank: int, world_size: int, secret: bytes, on_death: OnDeath, patience: float = 1800.0
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._secret, self._on_death, self._patience = secret, on_death, patience
        self._stop = threading.Event()
        self.connections: dict[int, socket.socket] = {}
        self._thread: threading.Thread | None = None

    def listen(self, address: str) -> str:
        """Accept lines at an own ``address``; return where. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # all ranks of a large job connect at once
        server = socket.create_server((address, 0), family=family, backlog=4096)
        server.settimeout(_TICK_SECONDS)
        self._begin(lambda: self._serve(server))
        return f"{address} {server.getsockname()[1]}"

    def connect(self, address: str) -> None:
        """Open the line to rank 0. Raises OSError, ValueError or TimeoutError."""
        host, port = address.split()
        line = socket.create_connection((host, int(port)), timeout=_HELLO_SECONDS)
        # A fresh number each time, so that a recorded proof of another connection is worth nothing.
        nonce = _exactly(line, _NONCE)
        line.sendall(f"{self._rank:<10}".encode() + self._proof(nonce, self._rank))
        _watch(line, self._patience)
        self.connections[0] = line
        # Before the thread begins: the connection may be closed by then
        ready = selectors.DefaultSelector()
        ready.register(line, selectors.EVENT_READ, 0)
        self._begin(lambda: self._listen_to_line(ready))

    def stop(self) -> None:
        """Send a farewell and close all connections."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _TICK_SECONDS + 1)
        for line in self.connections.values():
            with contextlib.suppress(OSError):
                line.sendall(_BYE)
            line.close()
        self.connections.clear()

    # -- threads

    def _begin(self, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=run, name="paceline-presence", daemon=True)
        self._thread.start()

    def _serve(self, server: socket.socket) -> None:
        """Let the ranks in one by one, then listen; late ones are let in between."""
        with server, selectors.DefaultSelector() as ready:
            ready.register(server, selectors.EVENT_READ, None)
            while not self._stop.is_set():
                for key, _ in ready.select(_TICK_SECONDS):
                    if key.data is None:
                        rank = self._admit(server)
                        if rank is not None:
                            ready.register(self.connections[rank], selectors.EVENT_READ, rank)
                    elif self._ended(key.data):
                        ready.unregister(self.connections[key.data])

    def _listen_to_line(self, ready: selectors.DefaultSelector) -> None:
        with ready:
            while not self._stop.is_set():
                if ready.select(_TICK_SECONDS) and self._ended(0):
                    return

    def _admit(self, server: socket.socket) -> int | None:
        """Accept a connection that proves to be a rank's; return the rank. Close any other."""
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            line, _ = server.accept()
            try:
                line.settimeout(_HELLO_SECONDS)
                nonce = secrets.token_hex(_NONCE // 2).encode()
                line.sendall(nonce)
                rank = int(_exactly(line, 10))
                proof = _exactly(line, _DIGEST)
                # A second line of the same rank would let a stranger's death count as the rank's.
                expected = 0 < rank < self._world_size and rank not in self.connections
                if expected and hmac.compare_digest(proof, self._proof(nonce, rank)):
                    _watch(line, self._patience)
                    self.connections[rank] = line
                    return rank
            except (OSError, ValueError):
                pass
            line.close()
        return None

    def _ended(self, rank: int) -> bool:
        """Read what arrived; return whether the connection has ended. An end without a farewell is a
        death."""
        try:
            # Nothing but the farewell is ever sent; an empty read is the end of the connection.
            data = self.connections[rank].recv(_LONGEST)
        except _CUT:
            data = b""
        except BlockingIOError:
            return False
        except OSError:  # timed out, no route: nobody knows of the process
            return True
        if data and not data.endswith(_BYE):
            return False
        # A thread of its own: the callback waits for seconds, and other lines are to be read meanwhile.
        if not data and not self._stop.is_set():
            threading.Thread(
                target=self._on_death, args=(rank,), name="paceline-presence-lost", daemon=True
            ).start()
        return True

    def _proof(self, nonce: bytes, rank: int) -> bytes:
        return (
            hmac.new(self._secret or b"none", nonce + str(rank).encode(), hashlib.sha256).hexdigest().encode()
        )


def own_address(towards: str, port: int) -> str:
    """Return this machine's own address in the network in which ``towards`` lies, IPv4 or IPv6; nothing is
    sent. It is a loopback address if ``towards`` is this machine's own name. Raises OSError.
    """
    error = OSError(f"{towards} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(towards, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # UDP: picks the route that a connection takes
                return str(probe.getsockname()[0])
        except OSError as exc:
            error = exc
    raise error


def _watch(line: socket.socket, patience: float) -> None:
    """Enable TCP keep-alive on the connection; the kernel closes it after ``patience`` seconds without an
    answer."""
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_AFTER,
        "TCP_KEEPINTVL": _PROBE_EVERY,
        "TCP_KEEPCNT": _MOST_PROBES,
        # Milliseconds in a C int. It overrides the keep-alive count (tcp(7)), so both are set.
        "TCP_USER_TIMEOUT": min(int(1000 * patience), (1 << 31) - 1),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Linux; macOS has some of them
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise OSError("hung up")
        data += part
    return data
