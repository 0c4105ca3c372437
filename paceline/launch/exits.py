"""Exit codes of many processes to one."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode

CALM = frozenset({int(ExitCode.OK), int(ExitCode.STOPPED)})


def overall_code(codes: Mapping[int, int], *, stop_signal: int | None = None) -> int:
    """The one exit code for the processes that ended with ``codes`` (by rank; negative: died of that signal, as ``Popen`` says).

    The cause wins over its consequences: a process's own failure over death by a signal, that over "ended because a peer failed".
    After a stop request (``stop_signal``) deaths by SIGTERM are consequences: the workers' "stopped, saved" wins if any gave it, else
    the answer is 128 + ``stop_signal``.
    """
    values = [codes[rank] for rank in sorted(codes)]
    own = [
        code for code in values if code > 0 and code not in (ExitCode.STOPPED, ExitCode.PEER_FAILED, ExitCode.CLOSING)
    ]
    if own:
        return own[0]
    killed = [code for code in values if code < 0 and not (stop_signal is not None and code == -signal.SIGTERM)]
    if killed:
        return 128 - killed[0]
    for code in (ExitCode.PEER_FAILED, ExitCode.CLOSING, ExitCode.STOPPED):
        if code in values:
            return int(code)
    if any(code < 0 for code in values):
        return 128 + (stop_signal or signal.SIGTERM)
    return int(ExitCode.OK)


def killed_diagnostic(rank: int, code: int) -> Diagnostic:
    """The name for a worker that died of signal ``-code`` and could not say anything itself."""
    number = -code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hints: dict[int, str] = {
        signal.SIGKILL: "most often the kernel's out-of-memory killer (see `dmesg`): a smaller per_device_train_batch_size or data.max_length",
        signal.SIGSEGV: "a crash in native code: see the rank's log for the stack",
        signal.SIGABRT: "native code gave up: see the lines above and the rank's log",
        signal.SIGBUS: "most often /dev/shm is full, or a file became shorter while it was mapped",
    }
    hint = hints.get(number, "see the rank's log")
    return Diagnostic("launch.worker_killed", f"rank {rank} was ended by {name}", f"rank {rank}", name, hint)
