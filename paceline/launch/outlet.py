"""Standard output and standard error of a process: no secret of its environment, and nothing of the shape of a token, leaves by them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from paceline.runlog.redact import Redactor

P = ParamSpec("P")
T = TypeVar("T")


class Outlet:
    """A text stream that redacts what is written; everything else is the stream's own."""

    def __init__(self, stream: Any, redact: Callable[[str], str]) -> None:
        self._stream, self._redact = stream, redact

    def write(self, text: str) -> int:
        """As a text stream's; the length of ``text`` as it was given."""
        self._stream.write(self._redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
