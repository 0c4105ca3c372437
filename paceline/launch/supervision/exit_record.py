"""``events/exits.json``: how each rank of a node ended, and why the run has its exit code.

The node's launcher begins it before it starts the ranks (``exit_code`` null, with its own pid), so readers
know whether a start is under way. It completes the record after all ranks have ended.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.core.files import read_run_file, refusal_of
from paceline.core.json_types import NO_UTF8, Json, JsonObject
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.launch import codes
from paceline.launch.processes import lineage, started_at
from paceline.launch.supervision.exit_codes import CALM, Failure, signal_name
from paceline.runlog.events import Error, Event, Notice
from paceline.runlog.log import RunLog
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result

_ROOM = 4096  # bytes: the record is begun with so many, so that it can be completed on a full disk
REQUEST = "request"  # a stop without a signal: paceline stop, a program, a node that is back
_WORDS = {
    int(ExitCode.OK): "finished",
    int(ExitCode.STOPPED): "stopped",
    int(ExitCode.CLOSING): "closing",
    int(ExitCode.PEER_FAILED): "another_rank",
    int(ExitCode.CONFIG): "refused",
    int(ExitCode.INTERRUPTED): "interrupted",
}


@dataclass(frozen=True)
class Exit:
    """How one rank ended. ``code``: its exit code, None if it was killed by ``signal`` or nothing is known.

    ``cause``: finished, stopped, refused, error (``error`` is its code), another_rank (it exited since
    another failed), closing, interrupted, signal, out_of_memory, the_launcher (killed by the launcher, after
    another rank's failure or a stop request), not_known. ``out_of_memory``: whether its cgroup counted such a
    kill; None: unknown.
    """

    rank: int
    pid: int
    code: int | None
    signal: str | None
    cause: str
    out_of_memory: bool | None = None
    error: str = ""

    @staticmethod
    def of(
        rank: int,
        pid: int,
        code: int | None,
        *,
        by_us: bool = False,
        out_of_memory: bool | None = None,
        finding: Diagnostic | None = None,
    ) -> Exit:
        """Build from ``Popen.returncode``, the rank's own report, and ``by_us`` (the launcher killed it)."""
        error = finding.code if finding is not None else ""
        if code is None:
            return Exit(rank, pid, None, None, "not_known", out_of_memory, error)
        if code >= 0:
            return Exit(rank, pid, code, None, _WORDS.get(code, "error"), None, error)
        cause = "the_launcher" if by_us else "out_of_memory" if out_of_memory else "signal"
        return Exit(rank, pid, None, signal_name(-code), cause, out_of_memory, error)


class LaunchRecord:
    """What a node's launcher writes into the run directory.

    A directory that was deleted is not created again.
    """

    def __init__(self, run: RunDir, node_rank: int, redact: Redactor) -> None:
        self.run, self.node_rank, self._redact = run, node_rank, redact
        # By inode and time: a result of this start replaces the file, whatever it says.
        self._earlier = _identity(run.result_json)  # of an earlier attempt, until rank 0 removes it
        self._saved_before = _identity(run.latest)
        self.stop = ""  # the signal that asked for a stop, or REQUEST

    def begin(self) -> None:
        """Record that this launcher starts the run, where its directory is already there.

        On several nodes rank 0 makes it; a disk that refuses will refuse the ranks too.
        """
        if self.run.events_dir.is_dir() and not self._is_anothers():
            identity = {"pid": os.getpid(), "began": started_at(os.getpid()), "host": socket.gethostname()}
            with suppress(OSError), written_into(self.run.root):
                self._publish(json.dumps({"exit_code": None, **identity, "ranks": []}).ljust(_ROOM) + "\n")

    @property
    def saved(self) -> bool:
        """Whether this start has published a checkpoint."""
        return _identity(self.run.latest) not in (None, self._saved_before)

    def _is_anothers(self) -> bool:
        """Whether another launcher, which lives, has begun a start in this directory."""
        return is_under_way(begun_start(self.run, self.node_rank))

    def write(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> list[Diagnostic]:
        """Write the exits, the killed rank's error event, and a result if rank 0 wrote none.

        Returns the first disk error as a diagnostic.
        """
        if not self.run.root.is_dir() or self._is_anothers():
            return []
        refused = []
        with written_into(self.run.root):
            # Each by itself: what one file could not take, another may.
            for write in (self._exits, self._error_event, self._result):
                try:
                    write(exits, exit_code, root)
                except OSError as exc:
                    why = refusal_of(exc, self.run.root)
                    reason = why.reason if why else exc.strerror or exc
                    problem = f"how the ranks ended could not be recorded: {reason}"
                    where, consequence = str(self.run.root), "only the output above is available"
                    refused.append(
                        codes.LAUNCH_EXITS_LOST(problem, where, str(exc), consequence, Severity.WARNING)
                    )
        return refused[:1]

    def _exits(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        path = self.run.exits(self.node_rank)
        data = {
            "exit_code": exit_code,
            "rank": root.rank if root is not None else None,
            "stop": self.stop,
            "cause": self._redact.diagnostic(root.finding).to_json() if root and root.finding else None,
            "ranks": [asdict(rank) for rank in sorted(exits, key=lambda rank: rank.rank)],
        }
        path.parent.mkdir(exist_ok=True)
        try:
            self._publish(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        except OSError:
            # The file has its bytes already, so a full disk takes the short form.
            self._overwrite(path, {**data, "ranks": []})
            raise

    def _publish(self, text: str) -> None:
        path = self.run.exits(self.node_rank)
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            staged.write_bytes(text.encode("utf-8", NO_UTF8))
            # A rename, as readers poll this file.
            staged.replace(path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise

    def _overwrite(self, path: Path, data: JsonObject) -> None:
        """Write a short form over what ``begin`` wrote, which takes no room on a full disk."""
        for short in (data, {**data, "cause": None}):
            text = json.dumps(short, ensure_ascii=False).encode("utf-8", NO_UTF8)
            if len(text) <= _ROOM and path.is_file() and path.stat().st_size > _ROOM:
                with suppress(OSError), path.open("r+b") as file:
                    file.write(text.ljust(_ROOM))
                return

    def _error_event(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        if root is not None and root.finding is not None and (root.code < 0 or root.silent):
            self._log(root.rank, Error(root.rank, root.finding))

    def note(self, rank: int, finding: Diagnostic) -> None:
        """Write what the launcher decides into a rank's log, where readers look."""
        if self.run.events_dir.is_dir():
            with suppress(OSError), written_into(self.run.root):
                self._log(rank, Notice(finding))

    def _log(self, rank: int, event: Event) -> None:
        log = RunLog(self.run, rank, self._redact)
        log.write(event)
        log.close()

    def _result(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        """Write a result where rank 0 wrote none, or make its exit code that of the run.

        A start that was refused, or stopped before rank 0 held the directory, leaves an earlier attempt's.
        """
        if self.node_rank != 0:
            return
        written = _identity(self.run.result_json)
        findings = (root.finding,) if root is not None and root.finding is not None else ()
        if written not in (None, self._earlier):  # rank 0 has written it
            self._correct(exit_code, findings)
            return
        early = root is None
        keeps_earlier = written is not None and (early or exit_code in (ExitCode.CONFIG, *CALM))
        if exit_code == ExitCode.OK or keeps_earlier:
            return
        if early:
            findings = (codes.LAUNCH_STOPPED_EARLY(exit_code=exit_code),)
        facts: dict[str, Json] = {"checkpoint": self._newest(), "rank": root.rank if root else None}
        outcome = "stopped" if early else "failed"
        write_result(self.run, outcome, exit_code, facts, findings, redact=self._redact)

    def _correct(self, exit_code: int, findings: Sequence[Diagnostic]) -> None:
        """Set the run's exit code, which only the launcher knows, in the result that rank 0 wrote."""
        try:
            data = json.loads(read_run_file(self.run.result_json))
            outcome, code = data.pop("outcome"), data.pop("exit_code")
            written = [Diagnostic.from_json(item) for item in data.pop("diagnostics", ())]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if code != exit_code:
            known = {(finding.code, finding.what) for finding in written}
            more = [finding for finding in findings if (finding.code, finding.what) not in known]
            write_result(self.run, outcome, exit_code, data, [*more, *written], redact=self._redact)

    def _newest(self) -> str:
        """Return the path of the newest checkpoint, by its hint; empty without one."""
        with suppress(OSError, UnicodeDecodeError):
            name = read_run_file(self.run.latest).strip()
            if name and (self.run.checkpoints / name).is_dir():
                return str(self.run.checkpoints / name)
        return ""


def begun_start(run: RunDir, node_rank: int = 0) -> JsonObject:
    """Return the record of the last start from a node; empty without one."""
    try:
        data = json.loads(read_run_file(run.exits(node_rank)))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def is_under_way(begun: Mapping[str, Json]) -> bool:
    """Whether the launcher that began this record lives on this machine, and is none of this process's."""
    pid = begun.get("pid")
    if begun.get("exit_code") is not None or not isinstance(pid, int) or pid <= 0:
        return False
    # With the start time, for the kernel reuses pids; -1 is unknown.
    lives = begun.get("host") == socket.gethostname() and started_at(pid) == begun.get("began") != -1
    return lives and pid not in lineage()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns
