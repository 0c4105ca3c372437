"""How a command other than training ends on signals, a closed pipe or a disk error, and its exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, ParamSpec

from paceline.core.errors import ExitCode
from paceline.core.os_errors import refusal_of
from paceline.launch import codes

P = ParamSpec("P")
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
READER_GONE = 141  # 128 + SIGPIPE: a shell's exit code for a program whose reader (head, less) has exited


class EndedBySignal(SystemExit):
    """A signal ended this program; ``reported``: the message has already been printed."""

    reported = False


def ended(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a program's ``main``: clean up on signals and return the documented exit code.

    SIGTERM gives 143, SIGHUP 129 and Ctrl-C 130, each with a message; a closed pipe 141, silently; an error
    of the disk 1, with a diagnostic.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        before = _install()
        try:
            return _answered(lambda: main(*args, **kwargs))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return run


def _answered(main: Callable[[], int]) -> int:
    try:
        try:
            code = main()
        except EndedBySignal as signalled:
            if not signalled.reported:
                signalled.reported = True
                print(f"ended by {signal.Signals(int(str(signalled.code)) - 128).name}", file=sys.stderr)
            sys.stdout.flush()
            raise
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        reader_gone()
        return READER_GONE
    except OSError as error:
        named = str(error.filename or "")
        why = refusal_of(error, Path(named) if named else None)
        if why is None:
            raise
        finding = codes.PROGRAM_SYSTEM_REFUSED(named, str(error), reason=why.reason, hint=why.hint)
        print(finding.render(), file=sys.stderr)
        reader_gone()  # what a full standard output did not take must not fail again when Python exits
        return int(ExitCode.FAILED)


def reader_gone() -> None:
    """Redirect standard output to /dev/null: its reader has exited, and flushing at exit must not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _install() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]  # not nohup's
    return {number: signal.signal(number, _leave) for number in ours}


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise EndedBySignal(128 + number)
