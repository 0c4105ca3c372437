"""Wrap a program's ``main``: redact its output, set its exit code, and name its module for imports.

It removes secrets of the environment, anything shaped like a token, and terminal control characters from its
standard output and standard error. That covers text from any source: a store, a log, a data row, a model's
config, an exception, a file name.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TextIO, TypeVar, cast

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.files import refusal_of
from paceline.launch import codes
from paceline.runlog.library_lines import kept_from_console
from paceline.runlog.redact import Redactor, printable

P = ParamSpec("P")
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOST = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, *_FULL)  # a pipe or a terminal that is gone
READER_GONE = 141  # 128 + SIGPIPE: a shell's exit code for a program whose reader (head, less) has exited


def program(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a program's ``main``: ``redacted`` and ``ended``."""
    return redacted(ended(main))


class Loss:
    """Handles output that cannot be written: an error, or ignored once it is ``tolerated``.

    A run must not end because its console is closed. ``reason``: why output was lost; empty if none was.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.tolerated, self.reason = stream, False, ""

    def guarded(self, write: Callable[[], int | None]) -> None:
        """Call ``write``; drop unwritable output if that is tolerated."""
        try:
            write()
        except OSError as error:
            if not self.tolerated or error.errno not in _LOST:
                raise
            self.reason = self.reason or error.strerror or str(error)
            # Empty the stream's buffers into nothing; on a full disk later output is tried again
            target = self._stream.fileno()
            # Kept, so that a full disk can be tried again with later output.
            opened = os.dup(target)
            _redirect_to_nothing(target)
            self._stream.flush()
            if error.errno in _FULL:
                os.dup2(opened, target)
            os.close(opened)


class RedactedStream:
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
        shown = self._redact(text)
        if self._escapes:
            shown = printable(shown, keep_newlines=True)
        if not shown.isascii():  # LANG=C, PYTHONIOENCODING=ascii
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.loss.guarded(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.loss.guarded(self._stream.flush)

    def isatty(self) -> bool:
        """False unless escaping is off: colours and progress bars of libraries would be escaped."""
        return not self._escapes and bool(self._stream.isatty())

    def terminal(self) -> RedactedStream:
        """Return the same stream without escaping."""
        return RedactedStream(self._stream, self._redact, escapes=False, loss=self.loss)

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
    return stream.terminal() if isinstance(stream, RedactedStream) else stream


def redacted(main: Callable[P, T]) -> Callable[P, T]:
    """Decorate a process's ``main``: redact both streams while it runs, and keep libraries' lines off them.

    On an exception they stay redacted, for the traceback that Python prints.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        # A ``main`` called from another one: redacting twice would escape the escapes.
        if is_own_program():
            return main(*args, **kwargs)
        before, redact = (sys.stdout, sys.stderr), Redactor.of(os.environ)
        sys.stdout, sys.stderr = (cast(Any, RedactedStream(stream, redact)) for stream in before)
        try:
            with kept_from_console(os.environ):
                result = main(*args, **kwargs)
        except SystemExit:
            sys.stdout, sys.stderr = before
            raise
        sys.stdout, sys.stderr = before
        return result

    return run


def is_own_program() -> bool:
    """Whether this process runs a ``main`` of ours (``redacted``), not a program that uses the library."""
    return isinstance(sys.stdout, RedactedStream)


def tolerate_loss() -> None:
    """From now on ignore errors of writing standard output or standard error (``Loss``)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, RedactedStream):
            stream.loss.tolerated = True


def lost_output() -> Diagnostic | None:
    """Return a warning if standard output was lost so far."""
    reason = sys.stdout.loss.reason if isinstance(sys.stdout, RedactedStream) else ""
    return codes.LAUNCH_OUTPUT_LOST("standard output", reason) if reason else None


class EndedBySignal(SystemExit):
    """A signal ended this program; ``reported``: the message has already been printed."""

    reported = False


def ended(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a program's ``main``: clean up on signals and return the documented exit code.

    SIGTERM gives 143, SIGHUP 129 and Ctrl-C 130, each with a message. A closed pipe gives 141, silently. A
    Paceline error gives its own code, a disk error 1, each with its diagnostics.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        # nohup's stay ignored
        ours = [number for number in names if signal.getsignal(number) is signal.SIG_DFL]
        with handling_signals(dict.fromkeys(ours, _leave)):
            return _exit_code(lambda: main(*args, **kwargs))

    return run


@contextmanager
def handling_signals(handlers: Mapping[int, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """Handle signals inside, where this is the main thread; elsewhere the caller keeps its own handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise EndedBySignal(128 + number)


def _exit_code(main: Callable[[], int]) -> int:
    try:
        try:
            code = main()
        except EndedBySignal as stop:
            if not stop.reported:
                stop.reported = True
                print(f"ended by {signal.Signals(int(str(stop.code)) - 128).name}", file=sys.stderr)
            sys.stdout.flush()
            raise
        except SystemExit:
            sys.stdout.flush()
            raise
        except PacelineError as error:
            print(error, file=sys.stderr)
            code = int(error.exit_code)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        reader_gone()
        return READER_GONE
    except OSError as error:
        path = str(error.filename or "")
        why = refusal_of(error, Path(path) if path else None)
        if why is None:
            raise
        finding = codes.PROGRAM_SYSTEM_REFUSED(path, str(error), reason=why.reason, hint=why.hint)
        print(finding.render(), file=sys.stderr)
        reader_gone()  # what a full standard output did not take must not fail again when Python exits
        return int(ExitCode.FAILED)


def reader_gone() -> None:
    """Redirect standard output to /dev/null: its reader has exited, and flushing at exit must not fail."""
    _redirect_to_nothing(sys.stdout.fileno())


def _redirect_to_nothing(target: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, target)
    os.close(nothing)


def importable_program() -> str:
    """Return the name under which this process and its children import the running program.

    Puts its folder first on ``PYTHONPATH``; this process does not import it a second time. Returns
    ``__main__`` if it has no file (a prompt, ``python -c``).
    """
    running = sys.modules["__main__"]
    spec, file = getattr(running, "__spec__", None), getattr(running, "__file__", None)
    if spec is not None:  # python -m package.module
        name = str(spec.name).removesuffix(".__main__")
    elif file is None:
        return "__main__"
    else:
        name, folder = Path(file).stem, str(Path(file).resolve().parent)
        paths = os.environ.get("PYTHONPATH", "")
        # Children import the user's classes by this name; their own ``__main__`` is another file.
        if folder not in paths.split(os.pathsep):
            os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{paths}" if paths else folder
    sys.modules.setdefault(name, running)
    return name


def keep_docstrings() -> None:
    """Let child processes keep docstrings, which Transformers needs to create models."""
    if sys.flags.optimize > 1 and "PYTHONOPTIMIZE" in os.environ:
        os.environ["PYTHONOPTIMIZE"] = "1"
