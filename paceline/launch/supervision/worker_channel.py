"""The socket between a worker and its node's launcher: the worker reports its failure, the launcher a death.

A UNIX socket in a folder of this user, named by an environment variable so that it is found behind torchrun's
agent too. Messages are JSON, one per line:

    worker → launcher   {"rank": 1, "pid": 4711}, then at most one of {"failed": 1, "finding": {…}} and
                        {"ended": 0}; once its parts are there {"modules": ["torch", …]}, last an empty one
    agent → launcher    {"rank": AGENT, "pid": 4710}, then {"codes": {"1": -9}}
    launcher → worker   {"rank": 0, "code": 137, "finding": {…}}: rank 0 died; ranks that stay are killed
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Diagnostic

SOCKET = "PACELINE_START_LINE"  # path of the launcher's socket, in the environment of its children
AGENT = -1  # stands for torchrun's agent in the "rank" field
MESSAGE_BYTES = 64 * 1024  # a finding without its evidence fits many times
_CONNECT_SECONDS = 2.0  # the launcher polls twenty times a second
_MODULES = 400  # names in a message
_SHORT_TEXT = 2000  # characters of each text of a finding that is too long for a message


@dataclass(frozen=True)
class PeerExit:
    """The launcher's message that ``rank`` has ended and the run must end with exit code ``code``."""

    rank: int
    code: int
    finding: Diagnostic

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "code": self.code, "finding": self.finding.to_json()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PeerExit:
        return PeerExit(int(data["rank"]), int(data["code"]), Diagnostic.from_json(data["finding"]))


class LauncherConnection:
    """A worker's end of the socket; without a launcher (torchrun, srun …) every method does nothing."""

    def __init__(self, link: socket.socket | None, on_peer_exit: Callable[[PeerExit], None]) -> None:
        self._link, self.on_peer_exit = link, on_peer_exit
        self.lost = threading.Event()  # the launcher has gone
        if link is not None:
            threading.Thread(
                target=self._listen, args=(link,), name="paceline-launch-line", daemon=True
            ).start()

    @staticmethod
    def join(
        environ: Mapping[str, str], rank: int, on_peer_exit: Callable[[PeerExit], None]
    ) -> LauncherConnection:
        """Connect to the launcher and listen.

        ``on_peer_exit`` runs in a listener thread and may be replaced later.
        """
        path = environ.get(SOCKET, "")
        if not path:
            return LauncherConnection(None, on_peer_exit)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(_CONNECT_SECONDS)
            link.connect(path)
            if not is_own(link):
                raise ConnectionError("another user's socket")
            link.sendall(encoded({"rank": rank, "pid": os.getpid()}))
            link.settimeout(None)
        except OSError:  # the launcher is gone, or the variable is stale: not a reason to fail
            link.close()
            return LauncherConnection(None, on_peer_exit)
        return LauncherConnection(link, on_peer_exit)

    @property
    def held(self) -> bool:
        """Whether a launcher is connected."""
        return self._link is not None

    def failed(self, code: int, finding: Diagnostic) -> None:
        """Report that this rank has an error of its own and will exit with ``code``."""
        self._send({"failed": int(code), "finding": finding.to_json()})

    def imported(self, modules: Sequence[str]) -> None:
        """Report what this rank has imported, for the spare of its node."""
        for start in range(0, len(modules), _MODULES):
            self._send({"modules": list(modules[start : start + _MODULES])})
        self._send({"modules": []})

    def ended(self, code: int) -> None:
        """Report that this rank exits in order, with ``code``."""
        self._send({"ended": int(code)})

    def codes(self, codes: Mapping[int, int]) -> None:
        """Report the exit codes of an agent's ranks, as in ``Popen.returncode``."""
        self._send({"codes": {str(rank): int(code) for rank, code in codes.items()}})

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            with suppress(OSError):  # the launcher closed it before
                self._link.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._link is not None:
            with suppress(OSError):  # the launcher is gone
                self._link.sendall(encoded(message))

    def _listen(self, link: socket.socket) -> None:
        rest = b""
        with link:
            while block := self._received(link):
                *lines, rest = (rest + block).split(b"\n")
                for message in decoded(lines):
                    self.on_peer_exit(PeerExit.from_json(message))
        self.lost.set()

    def _received(self, link: socket.socket) -> bytes:
        try:
            return link.recv(MESSAGE_BYTES)
        except OSError:
            return b""


@dataclass
class WorkerConnection:
    """A connected worker.

    - ``code``: the exit code it announced
    - ``finding``: its error
    - ``gone``: it closed the connection
    - ``notified``: it has been told of another rank's failure
    - ``codes``: for torchrun's agent, the exit codes of its ranks
    - ``modules``, ``imported``: what it has imported, and whether that is all
    """

    rank: int
    pid: int
    code: int | None = None
    finding: Diagnostic | None = None
    gone: bool = False
    notified: bool = False
    codes: dict[int, int] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    imported: bool = False


class WorkerServer:
    """Non-blocking server of the workers' connections, which tracks connected, failed and dead ranks.

    If no socket can be created there are no workers, and the launcher relies on signals alone.
    """

    def __init__(self, expected: int) -> None:
        """``expected``: the number of workers; once all have connected, the socket's file is removed."""
        self._expected = expected
        self.workers: dict[int, WorkerConnection] = {}  # by rank
        self._unread: dict[socket.socket, bytes] = {}  # received bytes of an incomplete line
        self._worker_of: dict[socket.socket, WorkerConnection] = {}
        self._folder: str | None = None
        self._server: socket.socket | None = None
        try:
            self._folder = tempfile.mkdtemp(prefix="paceline-launch-")
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._server.bind(str(Path(self._folder) / "line"))
            self._server.listen(128)
            self._server.setblocking(False)
        except OSError:
            self.close()

    @property
    def serves(self) -> bool:
        """Whether workers can connect."""
        return self._server is not None

    def environ(self) -> dict[str, str]:
        """Return the environment variable that tells workers where the socket is."""
        return {SOCKET: str(Path(self._folder) / "line")} if self._folder is not None else {}

    def poll(self) -> None:
        """Accept new connections and read what has arrived."""
        while self._server is not None:
            try:
                link, _ = self._server.accept()
            except OSError:
                break
            link.setblocking(False)
            if is_own(link):
                self._unread[link] = b""
            else:
                link.close()
        for link in list(self._unread):
            self._read(link)
        if sum(rank != AGENT for rank in self.workers) >= self._expected:
            self._remove_folder()

    def modules(self) -> list[str]:
        """Return what the first rank to say so has imported; empty before."""
        return next((worker.modules for worker in self.workers.values() if worker.imported), [])

    def send(self, message: PeerExit) -> None:
        """Send ``message`` once to every connected worker that has no error of its own."""
        for link, worker in self._worker_of.items():
            if not (worker.rank == AGENT or worker.notified or worker.gone or worker.finding is not None):
                worker.notified = True
                with suppress(OSError):  # it has exited meanwhile
                    # The link does not block: a worker that reads nothing must not hold the launcher.
                    link.send(encoded(message.to_json()))

    def close(self) -> None:
        """Close all connections and remove the socket's folder. Safe to call twice."""
        for link in (*self._unread, *filter(None, [self._server])):
            link.close()
        self._unread, self._server = {}, None
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _read(self, link: socket.socket) -> None:
        try:
            block = link.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        *lines, rest = (self._unread[link] + block).split(b"\n")
        # Bounded: a peer that never ends a line must not fill the memory.
        self._unread[link] = rest[:MESSAGE_BYTES]
        for message in decoded(lines):
            with suppress(KeyError, TypeError, ValueError):  # not our protocol
                self._take(link, message)
        if not block:
            del self._unread[link]
            link.close()
            if link in self._worker_of:
                self._worker_of.pop(link).gone = True

    def _take(self, link: socket.socket, message: dict[str, Any]) -> None:
        worker = self._worker_of.get(link)
        if worker is None:
            worker = WorkerConnection(int(message["rank"]), int(message["pid"]))
            self.workers[worker.rank] = self._worker_of[link] = worker
        elif "failed" in message:
            worker.code, worker.finding = int(message["failed"]), Diagnostic.from_json(message["finding"])
        elif "modules" in message:
            worker.modules += [str(name) for name in message["modules"]]
            worker.imported = not message["modules"]
        elif "ended" in message:
            worker.code = int(message["ended"])
        elif "codes" in message:
            worker.codes = {int(rank): int(code) for rank, code in message["codes"].items()}


def encoded(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line of at most MESSAGE_BYTES.

    If too long, drop the evidence and truncate texts.
    """
    line = json.dumps(message, default=str).encode() + b"\n"
    if len(line) > MESSAGE_BYTES and isinstance(message.get("finding"), Mapping):
        texts = {key: text for key, text in message["finding"].items() if key != "evidence"}
        short = {key: text[:_SHORT_TEXT] if isinstance(text, str) else text for key, text in texts.items()}
        line = json.dumps({**message, "finding": short}, default=str).encode() + b"\n"
    return line


def decoded(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the messages of complete lines; skip lines that are not JSON objects."""
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def is_own(link: socket.socket) -> bool:
    """Whether the peer process belongs to this user or to root.

    True if the system does not show it (not Linux).
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3I")
    # struct ucred: pid, uid, gid.
    _, uid, _ = struct.unpack("3I", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (os.geteuid(), 0)
