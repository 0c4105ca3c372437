"""Error reporting of the command line: diagnostics on stderr and an exit code, not a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from paceline.cli import codes
from paceline.core.diagnostics import Diagnostic, render_all
from paceline.core.errors import ExitCode, PacelineError
from paceline.launch.program import READER_GONE, EndedBySignal, keep_docstrings, reader_gone


def reported(run: Callable[[], Any]) -> int:
    """Call ``run`` and return its exit code; report anything it raises on stderr."""
    keep_docstrings()
    try:
        return _as_code(run())
    except EndedBySignal:
        raise  # the decorator ``ended`` reports the signal
    except SystemExit as stop:
        return _as_code(stop.code)
    except PacelineError as error:
        print_diagnostics(error.diagnostics)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader of our output (head, less) has exited
        reader_gone()
        return READER_GONE
    except OSError as error:
        where = str(error.filename or "")
        print_diagnostics(
            [
                codes.CLI_SYSTEM(
                    f"the system refused: {error.strerror or error}",
                    where,
                    type(error).__name__,
                    "check that the path exists and that you may use it",
                )
            ]
        )
        return int(ExitCode.CONFIG)
    except Exception as error:
        print_diagnostics([_defect(error)])
        return int(ExitCode.FAILED)


def print_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Print findings on stderr."""
    text = render_all(diagnostics)
    if text:
        print(text, file=sys.stderr, flush=True)


def _defect(error: Exception) -> Diagnostic:
    """Return a diagnostic for an unexpected exception, and write its traceback to a file for a bug report."""
    import tempfile
    import traceback

    from paceline.runlog.redact import Redactor

    frame = traceback.extract_tb(error.__traceback__)[-1]
    with tempfile.NamedTemporaryFile(
        "w", prefix="paceline-", suffix=".traceback.txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(Redactor.of(os.environ)("".join(traceback.format_exception(error))))
    return codes.CLI_DEFECT(
        f"{os.path.basename(frame.filename)}:{frame.lineno}",
        f"{type(error).__name__}: {error}",
        name=file.name,
    )


def _as_code(value: Any) -> int:
    if value is None:
        return int(ExitCode.OK)
    if isinstance(value, int):
        return int(value)
    print(value, file=sys.stderr)
    return int(ExitCode.FAILED)
