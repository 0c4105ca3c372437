"""Log records and warnings of libraries: write them to a rank's log file, and to the console only with
``--verbose``.

Code in ``site-packages``, in the standard library, or shipped with a model counts as a library. Errors are
always shown, and so are all records and warnings of the user's own code.
"""

from __future__ import annotations

import logging
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from paceline.runlog.lines import is_verbose

#: The logger whose handler gets libraries' records, while a program of ours runs.
LIBRARIES = __name__
Write = Callable[[str, str], None]  # a text, and its level as in ``runlog.log``

_MOST_HELD = 200  # records before the log file is open; later ones are dropped
#: Variables by which a user requests a library's lines.
_REQUESTS = ("TRANSFORMERS_VERBOSITY", "DATASETS_VERBOSITY", "TORCH_LOGS")
_INSTALLED = ("site-packages", "dist-packages", "transformers_modules")
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_STANDARD = str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep


def is_library(path: str) -> bool:
    """Whether the code in a file is a library's; Paceline's own files count too, for the warnings at their
    lines."""
    installed = any(part in _INSTALLED for part in Path(path).parts)
    return installed or path.startswith((_OWN, _STANDARD, "<frozen", "<string>"))


@contextmanager
def kept_from_console(environ: Mapping[str, str]) -> Iterator[None]:
    """Inside, libraries' warnings and log records below errors go to ``listen``, not to the console.

    Nothing changes with ``--verbose`` (``PACELINE_VERBOSE``), or if ``environ`` has a library's own variable
    for more lines.
    """
    if is_verbose(environ) or any(name in environ for name in _REQUESTS):
        yield
        return
    held = _Held()
    logging.getLogger(LIBRARIES).addHandler(held)
    shown, kind = warnings.showwarning, logging.getLoggerClass()
    warnings.showwarning = _logged_or(shown)
    named = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(each for each in named if isinstance(each, logging.Logger))]
    for logger in loggers:
        logger.addFilter(_passes)
    logging.setLoggerClass(_FilteredLogger)
    try:
        yield
    finally:
        logging.getLogger(LIBRARIES).removeHandler(held)
        logging.setLoggerClass(kind)
        for logger in loggers:
            logger.removeFilter(_passes)
        warnings.showwarning = shown


def listen(write: Write | None) -> None:
    """Call ``write(text, level)`` with each library record, also with those held so far.

    None: drop records from now on.
    """
    for held in _present():
        held.give_to(write)


def show_again(name: str) -> None:
    """Let the logger ``name`` print again: Paceline does not check what it reports."""
    logging.getLogger(name).removeFilter(_passes)


def _passes(record: logging.LogRecord) -> bool:
    """Filter of a logger: give a library's record below an error to ``LIBRARIES`` instead of its handlers."""
    ours = record.name.partition(".")[0] == "paceline"
    if ours or record.levelno >= logging.ERROR or not is_library(record.pathname):
        return True
    present = _present()
    for held in present:
        held.handle(record)
    return not present


class _FilteredLogger(logging.Logger):
    """The class of loggers that are made inside ``kept_from_console``."""

    def __init__(self, name: str, level: int = logging.NOTSET) -> None:
        super().__init__(name, level)
        self.addFilter(_passes)


def _logged_or(shown: Callable[..., None]) -> Callable[..., None]:
    """Return ``warnings.showwarning`` that logs libraries' warnings; ``shown`` prints all others."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: object) -> None:
        if not is_library(filename):
            shown(message, category, filename, *rest)
            return
        text = f"{filename}: {category.__name__}: {message}"
        record = logging.root.makeRecord("warnings", logging.WARNING, filename, 0, text, (), None)
        for held in _present():
            held.handle(record)

    return show


def _present() -> list[_Held]:
    """Return the handler of ``kept_from_console``; none outside of it."""
    return [each for each in logging.getLogger(LIBRARIES).handlers if isinstance(each, _Held)]


class _Held(logging.Handler):
    """Keeps the first records until a log file is open, then writes each into it."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []
        self._write: Write | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._write is None:
            self._records.append(record)
            del self._records[_MOST_HELD:]
            return
        try:
            level = "warning" if record.levelno >= logging.WARNING else "debug"
            self._write(f"{record.name}: {record.getMessage()}", level)
        except Exception:  # noqa: BLE001 - a library's broken record must not end a run
            self.handleError(record)

    def give_to(self, write: Write | None) -> None:
        """Write the held records, and each later one, with ``write``."""
        records, self._records, self._write = self._records, [], write
        for record in records if write is not None else ():
            self.handle(record)
