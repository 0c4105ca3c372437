"""The launcher's end of the lines to its workers (``line.py``): who is there, who has failed, whose process is gone."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.launch.line import AGENT, MESSAGE_BYTES, SOCKET, Word, decoded, encoded, is_own


@dataclass
class Caller:
    """A worker that has said who it is. ``code``: what it says it ends with; ``finding``: its own error; ``gone``: it hung up;
    ``codes``: torchrun's agent says it of its ranks."""

    rank: int
    pid: int
    code: int | None = None
    finding: Diagnostic | None = None
    gone: bool = False
    told: bool = False
    codes: dict[int, int] = field(default_factory=dict)


class Exchange:
    """Never waits. Where no socket can be made there are no callers, and the launcher has only signals."""

    def __init__(self, expected: int) -> None:
        """``expected``: how many workers will call; when all have, the socket's name goes away."""
        self._expected = expected
        self.callers: dict[int, Caller] = {}  # by rank
        self._links: dict[socket.socket, bytes] = {}  # what came and is not a whole line yet
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

    def environ(self) -> dict[str, str]:
        """What the workers are given to find this end."""
        return {SOCKET: str(Path(self._folder) / "line")} if self._folder is not None else {}

    def poll(self) -> None:
        """Take in what has come since the last call."""
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

    def tell(self, word: Word) -> None:
        """The word to every caller that has not heard it and has no error of its own."""
        for link, rank in self._who.items():
            caller = self.callers[rank]
            if rank == AGENT or caller.told or caller.gone or caller.finding is not None:
                continue
            caller.told = True
            with contextlib.suppress(OSError):  # it has ended meanwhile
                link.send(encoded(word.to_json()))

    def close(self) -> None:
        """Hang up and leave nothing behind. Calling it twice is harmless."""
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
        except (KeyError, TypeError, ValueError):  # not one of ours
            return
