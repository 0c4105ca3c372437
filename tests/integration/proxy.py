"""A wire between a rank and the store that can be made slow, or cut without a word (packets vanish,
nothing is closed).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Wire:
    """Listens on ``port`` and passes everything on to ``target``, ``delay`` seconds late; ``cut`` makes it
    swallow everything.
    """

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self.delay, self.cut = delay, False
        self._target, self._sockets = target, []  # type: ignore[var-annotated]
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._server.accept()[0]
                far = self._reach()
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _reach(self) -> socket.socket:
        while True:  # the store may come later than its client
            try:
                return socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                time.sleep(0.1)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                if not self.cut:
                    sink.sendall(data)
            if not self.cut:
                sink.shutdown(socket.SHUT_WR)
