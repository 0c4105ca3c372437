"""The exception tree and the exit codes.

PacelineError          carries one or more diagnostics
├── ConfigError        the YAML, flags or data description are wrong: nothing was started (exit code 2)
├── BusyError          another process holds what this one needs: try again later (exit code 75)
├── DataError          rows, files or tokens cannot be used
└── CheckpointError    a checkpoint is missing, incomplete or does not fit
"""

from __future__ import annotations

from enum import IntEnum

from paceline.core.diagnostics import Diagnostic, render_all


class ExitCode(IntEnum):
    """Exit codes of Paceline's processes."""

    OK = 0
    FAILED = 1  # an error during the run, with a diagnostic
    CONFIG = 2  # refused before any process was started
    CLOSING = 70  # the result is durable, but a process died during shutdown
    # EX_TEMPFAIL, the same command goes on later: stopped on request (SIGTERM, SIGHUP, first Ctrl-C) with a
    # checkpoint, or the run directory is still in use
    STOPPED = 75
    PEER_FAILED = 76  # this rank was terminated because another rank failed
    PEER_SILENT = 77  # no heartbeat from another rank or from the rendezvous store for ddp_timeout
    INTERRUPTED = 130  # second Ctrl-C: terminated at once


class PacelineError(Exception):
    """Base class of Paceline's errors; carries one or more diagnostics."""

    exit_code = ExitCode.FAILED

    def __init__(self, *diagnostics: Diagnostic) -> None:
        if not diagnostics:
            raise ValueError("a PacelineError needs at least one diagnostic")
        self.diagnostics = diagnostics
        super().__init__(render_all(diagnostics))


class ConfigError(PacelineError):
    """An invalid job, refused before any process was started."""

    exit_code = ExitCode.CONFIG


class BusyError(PacelineError):
    """Another process holds what this one needs; nothing was started, and the same command may work later."""

    exit_code = ExitCode.STOPPED


class DataError(PacelineError):
    """Rows, files or tokens that cannot be used."""

    exit_code = ExitCode.CONFIG


class CheckpointError(PacelineError):
    """A checkpoint is missing, incomplete, or does not fit this run."""
