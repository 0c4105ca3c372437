"""Text logs: ``logs/training.log`` (rank 0) and one log per rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from paceline.runlog.appended import Appended, OnRefusal
from paceline.runlog.redact import printable


class TextLog:
    """Append timestamped lines, with secrets redacted and control characters escaped. Thread-safe.

    Never raises for a full disk: ``on_refusal`` is called.
    """

    def __init__(
        self,
        path: Path,
        *,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.time,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self.path = path
        self._redact = redact or (lambda text: text)
        self._clock = clock
        self._lock = threading.Lock()
        self._file = Appended(path, on_refusal)

    @property
    def lost(self) -> int:
        """The number of lines that could not be written."""
        return self._file.lost

    def line(self, text: str, level: str = "info") -> None:
        """Append ``text``; its further lines are indented, so that no content can pass for a log line."""
        now = self._clock()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
        first, *rest = printable(self._redact(text), keep_newlines=True).split("\n")
        head = f"{stamp} {level:<7} {first}"
        body = "\n".join([head, *(f"    | {more}" for more in rest)]) + "\n"
        with self._lock:
            self._file.append(body.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file; later lines are dropped. Safe to call twice."""
        with self._lock:
            self._file.close()
