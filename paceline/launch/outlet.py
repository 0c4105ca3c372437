"""Standard output and standard error of a process: no secret of its environment, nothing of the shape of a token, and no character that a terminal
obeys leaves by them, wherever the text came from (a store, a log, a row, a model's config, an exception, a file's name)."""

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
    """A text stream that redacts and escapes what is written; everything else is the stream's own.

    ``escapes`` False: for who writes a terminal's control sequences itself and has escaped the rest (``terminal``).
    """

    def __init__(self, stream: Any, redact: Callable[[str], str], *, escapes: bool = True) -> None:
        self._stream, self._redact, self._escapes = stream, redact, escapes

    def write(self, text: str) -> int:
        """As a text stream's; the length of ``text`` as it was given."""
        redacted_text = self._redact(text)
        self._stream.write(printable(redacted_text, keep_newlines=True) if self._escapes else redacted_text)
        return len(text)

    def isatty(self) -> bool:
        """No terminal for libraries: their colours and bars would arrive escaped."""
        return not self._escapes and bool(self._stream.isatty())

    def terminal(self) -> Outlet:
        """The same stream without the escaping."""
        return Outlet(self._stream, self._redact, escapes=False)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):
            raise AttributeError(f"{name}: what is written there would go round redaction and escaping")
        return getattr(self._stream, name)


def terminal(stream: Any) -> Any:
    """``stream`` as a terminal, if it is one: for a live bar or a table in colours, whose writer escapes (``runlog.redact.printable``) what it did not write itself."""
    return stream.terminal() if isinstance(stream, Outlet) else stream


def redacted(main: Callable[P, T]) -> Callable[P, T]:
    """A process's ``main`` with both streams redacted while it runs; an exception leaves them so, for the traceback that Python prints."""

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
