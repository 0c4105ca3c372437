"""Redact and escape everything that a process writes to standard output and standard error.

Secrets of the environment, anything shaped like a token, and terminal control characters are removed,
wherever the text came from (a store, a log, a data row, a model's config, an exception, a file name).
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TextIO, TypeVar, cast

from paceline.core.diagnostics import Diagnostic
from paceline.launch import codes
from paceline.runlog.redact import Redactor, printable

P = ParamSpec("P")
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOST = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, *_FULL)  # a pipe or a terminal that is gone


class Loss:
    """What becomes of output that cannot be written: an error, or once it is ``tolerated`` nothing.

    A run must not end since nobody reads its console. ``reason``: why output was lost; empty if none was.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.tolerated, self.reason = stream, False, ""

    def guarded(self, write: Callable[[], int | None]) -> None:
        """Call ``write``; drop what it could not write, if that is tolerated."""
        try:
            write()
        except OSError as error:
            if not self.tolerated or error.errno not in _LOST:
                raise
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Empty the stream's buffers into nothing; on a full disk later output is tried again."""
        self.reason = self.reason or error.strerror or str(error)
        number = self._stream.fileno()
        kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        self._stream.flush()
        if error.errno in _FULL:
            os.dup2(kept, number)
        os.close(kept)
        os.close(nowhere)


class Outlet:
    """A text stream that redacts and escapes what is written; other attributes are the wrapped stream's.

    ``escapes`` False: for a writer of terminal control sequences that escapes foreign text itself
    (``terminal``).
    """

    def __init__(
        self, stream: Any, redact: Callable[[str], str], *, escapes: bool = True, loss: Loss | None = None
    ) -> None:
        self._stream, self._redact, self._escapes = stream, redact, escapes
        self.loss = loss if loss is not None else Loss(stream)

    def write(self, text: str) -> int:
        """Write ``text`` redacted and escaped, in the stream's encoding; return the length as given."""
        redacted_text = self._redact(text)
        shown = printable(redacted_text, keep_newlines=True) if self._escapes else redacted_text
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if not shown.isascii():  # LANG=C, PYTHONIOENCODING=ascii
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.loss.guarded(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.loss.guarded(self._stream.flush)

    def isatty(self) -> bool:
        """False unless escaping is off: colours and progress bars of libraries would be escaped."""
        return not self._escapes and bool(self._stream.isatty())

    def terminal(self) -> Outlet:
        """Return the same stream without escaping."""
        return Outlet(self._stream, self._redact, escapes=False, loss=self.loss)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):
            raise AttributeError(f"{name}: output written there would bypass redaction and escaping")
        return getattr(self._stream, name)


def terminal(stream: Any) -> Any:
    """Return ``stream`` without escaping, for a live progress bar or a coloured table.

    The writer must escape foreign text itself (``runlog.redact.printable``).
    """
    return stream.terminal() if isinstance(stream, Outlet) else stream


def redacted(main: Callable[P, T]) -> Callable[P, T]:
    """Decorate a process's ``main``: redact both streams while it runs.

    On an exception they stay redacted, for the traceback that Python prints.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(sys.stdout, Outlet):
            return main(*args, **kwargs)
        before = sys.stdout, sys.stderr
        redact = Redactor.of(os.environ)
        sys.stdout, sys.stderr = (cast(Any, Outlet(stream, redact)) for stream in before)
        try:
            result = main(*args, **kwargs)
        except SystemExit:
            sys.stdout, sys.stderr = before
            raise
        sys.stdout, sys.stderr = before
        return result

    return run


def tolerate_loss() -> None:
    """Go on from here on where standard output or standard error cannot be written (``Loss``)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Outlet):
            stream.loss.tolerated = True


def lost_output() -> Diagnostic | None:
    """Return a warning if standard output was lost so far."""
    reason = sys.stdout.loss.reason if isinstance(sys.stdout, Outlet) else ""
    if not reason:
        return None
    return codes.LAUNCH_OUTPUT_LOST("standard output", reason)


def own_program() -> bool:
    """Whether this process runs a ``main`` of ours (``redacted``), not a program that uses the library."""
    return isinstance(sys.stdout, Outlet)
