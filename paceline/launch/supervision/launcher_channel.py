"""The launcher's end of the sockets to its workers (``line.py``): which ranks connected, failed or died."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.launch.supervision.worker_channel import (
    AGENT,
    MESSAGE_BYTES,
    SOCKET,
    Word,
    decoded,
    encoded,
    is_own,
)


@dataclass
class Caller:
    """A connected worker.

    ``code``: the exit code it announced; ``finding``: its error; ``gone``: it closed the connection;
    ``notified``: it was sent another rank's failure; ``codes``: for torchrun's agent, the exit codes of its
    ranks.
    """

    rank: int
    pid: int
    code: int | None = None
    finding: Diagnostic | None = None
    gone: bool = False
    notified: bool = False
    codes: dict[int, int] = field(default_factory=dict)


class Exchange:
    """Non-blocking server of the workers' connections.

    If no socket can be created there are no callers, and the launcher relies on signals alone.
    """

    def __init__(self, expected: int) -> None:
        """``expected``: the number of workers; once all have connected, the socket's file is removed."""
        self._expected = expected
        self.callers: dict[int, Caller] = {}  # by rank
        self._links: dict[socket.socket, bytes] = {}  # received bytes of an incomplete line
        self._who: dict[socket.socket, int] = {}
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
                self._links[link] = b""
            else:
                link.close()
        for link in list(self._links):
            self._read(link)
        if self._folder is not None and sum(rank != AGENT for rank in self.callers) >= self._expected:
            self._forget()

    def send(self, word: Word) -> None:
        """Send ``word`` once to every connected worker that has no error of its own."""
        for link, rank in self._who.items():
            caller = self.callers[rank]
            if rank == AGENT or caller.notified or caller.gone or caller.finding is not None:
                continue
            caller.notified = True
            with contextlib.suppress(OSError):  # it has exited meanwhile
                link.send(encoded(word.to_json()))

    def close(self) -> None:
        """Close all connections and remove the socket's folder. Safe to call twice."""
        for link in (*self._links, *([self._server] if self._server is not None else [])):
            link.close()
        self._links, self._server = {}, None
        self._forget()

    def _forget(self) -> None:
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
        *lines, rest = (self._links[link] + block).split(b"\n")
        self._links[link] = rest[:MESSAGE_BYTES]
        for message in decoded(lines):
            self._take(link, message)
        if not block:
            del self._links[link]
            link.close()
            if link in self._who:
                self.callers[self._who.pop(link)].gone = True

    def _take(self, link: socket.socket, message: dict[str, Any]) -> None:
        try:
            if link not in self._who:
                caller = Caller(int(message["rank"]), int(message["pid"]))
                self.callers[caller.rank], self._who[link] = caller, caller.rank
                return
            caller = self.callers[self._who[link]]
            if "failed" in message:
                caller.code, caller.finding = int(message["failed"]), Diagnostic.from_json(message["finding"])
            elif "ended" in message:
                caller.code = int(message["ended"])
            elif "codes" in message:
                caller.codes = {int(rank): int(code) for rank, code in message["codes"].items()}
        except (KeyError, TypeError, ValueError):  # not our protocol
            return
