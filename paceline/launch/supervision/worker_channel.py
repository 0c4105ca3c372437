"""The socket between a worker and its node's launcher: the worker reports its failure, the launcher a death.

A UNIX socket in a folder of this user, named by an environment variable so that it is found behind torchrun's
agent too. Messages are JSON, one per line:

    worker → launcher   {"rank": 1, "pid": 4711}, then at most one of {"failed": 1, "finding": {…}} and
                        {"ended": 0}
    agent → launcher    {"rank": AGENT, "pid": 4710}, then {"codes": {"1": -9}}
    launcher → worker   {"rank": 0, "code": 137, "finding": {…}}: rank 0 died; ranks that stay are killed
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.diagnostics import Diagnostic

SOCKET = "PACELINE_START_LINE"  # path of the launcher's socket, in the environment of its children
AGENT = -1  # stands for torchrun's agent in the "rank" field
MESSAGE_BYTES = 64 * 1024
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class Word:
    """The launcher's message that ``rank`` has ended and the run must end with exit code ``code``."""

    rank: int
    code: int
    finding: Diagnostic

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "code": self.code, "finding": self.finding.to_json()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Word:
        return Word(int(data["rank"]), int(data["code"]), Diagnostic.from_json(data["finding"]))


class Line:
    """A worker's end of the socket; without a launcher (torchrun, srun …) every method does nothing."""

    def __init__(self, link: socket.socket | None, on_word: Callable[[Word], None]) -> None:
        self._link = link
        self.on_word = on_word
        if link is not None:
            threading.Thread(
                target=self._listen, args=(link,), name="paceline-launch-line", daemon=True
            ).start()

    @staticmethod
    def join(environ: Mapping[str, str], rank: int, on_word: Callable[[Word], None]) -> Line:
        """Connect to the launcher and listen.

        ``on_word`` runs in a listener thread and may be replaced later.
        """
        path = environ.get(SOCKET, "")
        if not path:
            return Line(None, on_word)
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
            return Line(None, on_word)
        return Line(link, on_word)

    @property
    def held(self) -> bool:
        """Whether a launcher is connected."""
        return self._link is not None

    def failed(self, code: int, finding: Diagnostic) -> None:
        """Report that this rank has an error of its own and will exit with ``code``."""
        self._send({"failed": int(code), "finding": finding.to_json()})

    def ended(self, code: int) -> None:
        """Report that this rank exits in order, with ``code``."""
        self._send({"ended": int(code)})

    def codes(self, codes: Mapping[int, int]) -> None:
        """Report the exit codes of an agent's ranks, as in ``Popen.returncode``."""
        self._send({"codes": {str(rank): int(code) for rank, code in codes.items()}})

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            with contextlib.suppress(OSError):  # the launcher closed it before
                self._link.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.sendall(encoded(message))
        except OSError:  # the launcher is gone
            return

    def _listen(self, link: socket.socket) -> None:
        rest = b""
        with link:
            while block := self._received(link):
                *lines, rest = (rest + block).split(b"\n")
                for message in decoded(lines):
                    self.on_word(Word.from_json(message))

    def _received(self, link: socket.socket) -> bytes:
        try:
            return link.recv(MESSAGE_BYTES)
        except OSError:
            return b""


def encoded(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line of at most MESSAGE_BYTES.

    If too long, drop the evidence and truncate texts.
    """
    line = json.dumps(message, default=str).encode() + b"\n"
    if len(line) > MESSAGE_BYTES and isinstance(message.get("finding"), Mapping):
        short = {
            k: v[:2000] if isinstance(v, str) else v for k, v in message["finding"].items() if k != "evidence"
        }
        line = json.dumps({**message, "finding": short}, default=str).encode() + b"\n"
    return line


def decoded(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the messages of complete lines; skip lines that are not JSON objects."""
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def is_own(link: socket.socket) -> bool:
    """Whether the peer process belongs to this user or to root.

    True where the system cannot tell (not Linux).
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack(
        "3I", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3I"))
    )
    return uid in (os.geteuid(), 0)
