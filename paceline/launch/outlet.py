"""Redact and escape everything that a process writes to standard output and standard error.

Secrets of the environment, anything shaped like a token, and terminal control characters are removed,
wherever the text came from (a store, a log, a data row, a model's config, an exception, a file name).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from paceline.runlog.redact import Redactor, printable

P = ParamSpec("P")
T = TypeVar("T")


class Outlet:
    """A text stream that redacts and escapes what is written; other attributes are the wrapped stream's.

    ``escapes`` False: for a writer of terminal control sequences that escapes foreign text itself
    (``terminal``).
    """

    def __init__(self, stream: Any, redact: Callable[[str], str], *, escapes: bool = True) -> None:
        self._stream, self._redact, self._escapes = stream, redact, escapes

    def write(self, text: str) -> int:
        """Write ``text`` redacted and escaped; return the length of ``text`` as given."""
        redacted_text = self._redact(text)
        self._stream.write(printable(redacted_text, keep_newlines=True) if self._escapes else redacted_text)
        return len(text)

    def isatty(self) -> bool:
        """False unless escaping is off: colours and progress bars of libraries would be escaped."""
        return not self._escapes and bool(self._stream.isatty())

    def terminal(self) -> Outlet:
        """Return the same stream without escaping."""
        return Outlet(self._stream, self._redact, escapes=False)

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


def own_program() -> bool:
    """Whether this process runs a ``main`` of ours (``redacted``), not a program that uses the library."""
    return isinstance(sys.stdout, Outlet)
