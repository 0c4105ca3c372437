"""Exit codes of many processes: combined into one, the failure that caused the others, and what follows each.

A rank's own reported error wins over the errors that it causes in others. So does the first death by a signal
that the launcher did not send. The order in which failures are observed is not always the order in which they
happened. Ranks that lose a peer may fail with arbitrary errors shortly before the launcher notices the dead
process. A library may abort (SIGABRT) a rank whose peer has just reported its error. So a death by a signal
that is never a consequence wins over errors up to ``ECHO_SECONDS`` older. A death that may be a consequence
loses to them.

A cgroup's counter tells whether the kernel's out-of-memory killer ended a process. cgroup v2: ``oom_kill`` in
``memory.events``; v1: ``oom_kill`` in ``memory.oom_control`` (Linux 4.13). Both count killed processes of the
group, whichever limit was exceeded. See Documentation/admin-guide/cgroup-v2.rst.

``AFTER`` is the one table behind restarts, docs, manifests and scripts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode
from paceline.launch import codes

CALM = frozenset({int(ExitCode.OK), int(ExitCode.STOPPED)})
ECHOES = frozenset({int(ExitCode.PEER_FAILED), int(ExitCode.CLOSING)})
ECHO_SECONDS = 2.0  # between a death and what the others make of it
_LESS_MEMORY = (
    "use a smaller training.per_device_train_batch_size or data.max_length,"
    " training.gradient_checkpointing: true, or more memory"
)
_UNKNOWN_KILL = (
    f"it is unknown whether memory ran out (no counter can be read; check `dmesg`); if it did, {_LESS_MEMORY}"
)
_OTHER_KILL = (
    "memory did not run out (the cgroup counts no such kill): find out what sent the signal (kill -9, a"
    " scheduler's limit)"
)
_SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGSEGV: "crash in native code: the stack of each thread is in {log}",
    signal.SIGFPE: "crash in native code: the stack of each thread is in {log}",
    signal.SIGILL: "native code was built for another processor: the stack of each thread is in {log}",
    signal.SIGABRT: "native code aborted: its reason is above, the stack of each thread in {log}",
    signal.SIGBUS: (
        "usually /dev/shm is full, or a file was truncated while it was mapped: the stack is in {log}"
    ),
}
_MAY_ECHO = frozenset({int(signal.SIGABRT), int(signal.SIGTERM), int(signal.SIGPIPE)})


@dataclass(frozen=True)
class Failure:
    """A rank that failed by itself.

    - ``code``: as ``Popen.returncode`` (negative: killed by that signal)
    - ``at``: seconds of a monotonic clock
    - ``finding``: its error
    - ``silent``: it reported nothing, so the launcher made the finding
    """

    rank: int
    code: int
    at: float
    finding: Diagnostic | None = None
    silent: bool = False

    @property
    def answer(self) -> int:
        """Return the run's exit code if this failure is the root cause."""
        return self.code if self.code > 0 else 128 - self.code


def root_of(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that caused the others; None if there are none."""
    reported = min((f for f in failures if f.code > 0), key=lambda f: f.at, default=None)
    killed = min(
        # At the same moment a signal that can only come from outside goes first.
        (f for f in failures if f.code < 0),
        key=lambda f: (f.at, -f.code in _MAY_ECHO),
        default=None,
    )
    if reported is None or killed is None:
        return reported or killed
    slack = -ECHO_SECONDS if -killed.code in _MAY_ECHO else ECHO_SECONDS
    return killed if killed.at <= reported.at + slack else reported


def overall_code(codes: Mapping[int, int], *, stop_signal: int | None = None) -> int:
    """Combine the exit codes of all ranks (by rank; negative: killed by that signal, as in ``Popen``).

    Causes win over consequences: a process's own failure over a death by signal, and that over "exited
    because a peer failed". After a stop request (``stop_signal``) deaths by SIGTERM are consequences:
    "stopped, saved" wins if any worker returned it, else the result is 128 + ``stop_signal``.
    """
    values = [codes[rank] for rank in sorted(codes)]
    # Own failures, then deaths by signal, then consequences in order of severity.
    consequences = [ExitCode.PEER_FAILED, ExitCode.CLOSING, ExitCode.STOPPED]
    # 0 is no one's death: without a request every SIGTERM is a cause.
    by_request = -signal.SIGTERM if stop_signal is not None else 0
    causes = [
        *(code for code in values if code > 0 and code not in consequences),
        *(128 - code for code in values if code < 0 and code != by_request),
        *(int(code) for code in consequences if code in values),
        *(128 + (stop_signal or signal.SIGTERM) for code in values if code < 0),
    ]
    return next(iter(causes), int(ExitCode.OK))


def left_unannounced(rank: int, code: int, time: float, log: str = "") -> Failure:
    """Return the failure of a rank that exited with ``code`` without a report to its launcher.

    Every rank announces its end, so user code or a library has ended this one (``os._exit``). An exit code
    with a meaning in Paceline (finished, stopped, refused) is not trusted then.
    """
    answer = int(ExitCode.FAILED) if code in (*CALM, *ECHOES, ExitCode.CONFIG) else code
    remedy = (
        f"see the output above and {log or 'the log of that rank'}; a function of yours or a library may have"
        " called os._exit: let it raise an exception, or stop a run with a callback's should_stop"
    )
    finding = codes.LAUNCH_RANK_LEFT(f"rank {rank}", f"exit code {code}", rank=rank, code=code, hint=remedy)
    return Failure(rank, answer, time, finding, silent=True)


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and ``signal 63`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def killed_diagnostic(rank: int, code: int, out_of_memory: bool | None = None, log: str = "") -> Diagnostic:
    """Return the diagnostic for a worker that was killed by signal ``-code`` and could not report anything.

    ``out_of_memory``: whether its cgroup counted an out-of-memory kill, None if unknown; ``log``: path of its
    log.
    """
    number, name, where = -code, signal_name(-code), f"rank {rank}"
    evidence = {"rank": rank, "signal": name, "out_of_memory": out_of_memory}
    if number == signal.SIGKILL and out_of_memory:
        message = (
            f"{where} was ended by the kernel's out-of-memory killer (SIGKILL): its cgroup counted the kill"
        )
        return codes.LAUNCH_OUT_OF_MEMORY(message, where, name, _LESS_MEMORY, evidence=evidence)
    remedy = _SIGNAL_HINTS.get(number, "find out what sent the signal, and see {log}")
    if number == signal.SIGKILL:
        remedy = _UNKNOWN_KILL if out_of_memory is None else _OTHER_KILL
    remedy = remedy.format(log=log or "the rank's log")
    return codes.LAUNCH_WORKER_KILLED(f"{where} was ended by {name}", where, name, remedy, evidence=evidence)


# by the type of file system in mountinfo
_FILES = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class MemoryKills:
    """The out-of-memory counters of the watched processes' cgroups."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: dict[Path, int] = {}
        self._of: dict[int, list[Path]] = {}  # of each process, all groups that it was seen in

    def watch(self, pid: int) -> None:
        """Record the counter of ``pid``'s cgroup and its current value.

        Call again if the process may have been moved. A process that is dying is moved too: under v1 to the
        root, so groups that it was seen in before count on.
        """
        path = counter_of(pid, self._proc)
        # The first value counts: reading it again after a kill would hide that kill.
        count = None if path is None or path in self._of.get(pid, ()) else _count(path)
        if path is not None and count is not None:
            self._of.setdefault(pid, []).append(path)
            self._before.setdefault(path, count)

    def killed(self, pid: int) -> bool | None:
        """Whether the counter of ``pid``'s cgroup has grown since ``watch``; None if it cannot be read."""
        paths = self._of.get(pid, [])
        after = {path: _count(path) for path in paths}
        if any(count is not None and count > self._before[path] for path, count in after.items()):
            return True
        return None if not paths or None in after.values() else False


def counter_of(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the file with the out-of-memory counter of ``pid``'s cgroup.

    None if there is none that can be read.
    """
    try:
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    inside_of: dict[str, str] = {}  # type of file system → the cgroup's path in its hierarchy
    for line in groups:
        # A cgroup's name may hold colons: two cuts only.
        hierarchy, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if hierarchy == "0" and not controllers:
            inside_of["cgroup2"] = path
        elif "memory" in controllers.split(","):
            inside_of["cgroup"] = path
    # Find where that hierarchy is mounted; inside a container only a part of it may be.
    for line in mounts:
        # proc(5): optional fields of any number end with a lone hyphen.
        before, _, after = line.partition(" - ")
        fields, (kind, *options) = before.split(), after.split() or [""]
        of_memory = kind != "cgroup" or "memory" in options[-1].split(",")
        if kind not in inside_of or len(fields) < 5 or not of_memory:
            continue
        root, mount, inside = fields[3], Path(fields[4].replace("\\040", " ")), inside_of[kind]
        if root == "/" or f"{inside}/".startswith(f"{root}/"):
            file = mount / inside.removeprefix(root).lstrip("/") / _FILES[kind]
            if _count(file) is not None:
                return file
    return None


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


class After(Enum):
    """What follows a job's end, in the words of docs/reference/exit-codes.md."""

    DONE = "nothing"
    FAIL = "fails: the same start would fail again"
    RESUME = "starts again, uncounted"
    COUNT = "starts again, counted"


#: of a node's launcher; every other code counts, since its cause may heal
AFTER: Mapping[int, After] = {
    ExitCode.OK: After.DONE,
    ExitCode.CONFIG: After.FAIL,
    ExitCode.CLOSING: After.DONE,
    ExitCode.STOPPED: After.RESUME,
    ExitCode.PEER_FAILED: After.COUNT,
    ExitCode.PEER_SILENT: After.COUNT,
    ExitCode.INTERRUPTED: After.FAIL,
    137: After.COUNT,  # SIGKILL: out of memory, or a node that went away
    143: After.COUNT,  # SIGTERM before a save
}

#: How much a node's code says about the job's end: a node that failed by itself says more than its peers.
_WEIGHTS = (After.DONE, After.RESUME, After.COUNT, After.FAIL)


def after(code: int) -> After:
    """Return what follows a node's exit code."""
    return AFTER.get(code, After.COUNT)


def decisive(codes: Iterable[int]) -> int:
    """Return the code that decides among those of a job's nodes, given in the order of their ends."""
    # The first maximum: of equals the node that ended first.
    return max(codes, key=lambda code: (_WEIGHTS.index(after(code)), code != ExitCode.PEER_FAILED))
