"""A proxy between a client and an object store whose network fails: errors, slow answers, halves of content,
requests that arrive twice, requests that act although their answer is lost, listings that are late.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: The last one is of listings, and of them all.
FAULTS = ("error", "slow", "half_sent", "half_received", "twice", "answer_lost", "late_listing")
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")
Answer = tuple[int, list[tuple[str, str]], bytes]


class Faults:
    """Which request fails how: ``rate`` of them, at random from ``seed``; ``seen`` counts."""

    def __init__(self, seed: int, rate: float) -> None:
        self.rate = rate
        self.seen: Counter[str] = Counter()
        self.listings: dict[str, Answer] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def of(self, method: str, path: str) -> str:
        listing = "list-type" in path
        with self._lock:
            if listing and path in self.listings:  # each shows what was there at the time before
                kind = "late_listing"
            elif self._random.random() >= self.rate:
                return ""
            else:
                kind = self._random.choice(FAULTS[:-1])
                if kind == "half_sent" and method != "PUT":
                    kind = "error"
            self.seen[kind] += 1
            return kind


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    backend: tuple[str, int]

    def log_message(self, *_: object) -> None: ...

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.faults.of(self.command, self.path)
        if kind == "error":
            self.answer((503, [], b"<Error><Code>SlowDown</Code></Error>"))
            return
        if kind == "slow":
            time.sleep(0.05)
        if kind == "half_sent":
            self.send_half(body)
            self.cut()
            return
        if kind == "twice":
            self.ask(body)
        answer = self.ask(body)
        if kind == "answer_lost":
            self.cut()
            return
        if "list-type" in self.path:  # of the prefix, a page ago
            before = self.faults.listings.get(self.path, answer)
            self.faults.listings[self.path] = answer
            answer = before
        self.answer(answer, half=kind == "half_received")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(*self.backend, timeout=30)
        try:
            connection.request(self.command, self.path, body, self.forwarded(body))
            found = connection.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            connection.close()

    def forwarded(self, body: bytes) -> dict[str, str]:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        return {**kept, "Content-Length": str(len(body))}

    def send_half(self, body: bytes) -> None:
        """Send half of the content and close, as a broken line does."""
        with socket.create_connection(self.backend, timeout=30) as line:
            head = f"{self.command} {self.path} HTTP/1.1\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in self.forwarded(body).items())
            line.sendall(head.encode() + b"\r\n" + body[: len(body) // 2])
            line.shutdown(socket.SHUT_WR)
            line.settimeout(5)
            with suppress(OSError):
                line.recv(1000)

    def answer(self, answer: Answer, *, half: bool = False) -> None:
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in (*_HOP, "server", "date"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length", str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.cut()

    def cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def fault_proxy(host: str, port: int, faults: Faults) -> Iterator[str]:
    """Stand before ``host:port``; yields the URL to go by."""
    handler = type("Of", (Handler,), {"faults": faults, "backend": (host, port)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
