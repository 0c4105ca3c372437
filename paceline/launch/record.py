"""``events/exits.json``: how each rank of a node ended, and why the run has its exit code.

Written by the node's launcher after all ranks have ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.core.private import written_into
from paceline.core.refusals import refusal_of
from paceline.core.rundir import RunDir
from paceline.launch import codes
from paceline.launch.exits import Failure, signal_name
from paceline.runlog.events import Error
from paceline.runlog.log import RunLog
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result

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
        self._earlier = _identity(run.result_json)  # of an earlier attempt, until rank 0 removes it

    def write(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> list[Diagnostic]:
        """Write the exits, the killed rank's error event, and a result if rank 0 wrote none.

        Returns the first disk error as a diagnostic.
        """
        if not self.run.root.is_dir():
            return []
        refused = []
        with written_into(self.run.root):
            for write in (self._exits, self._error_event, self._result):
                try:
                    write(exits, exit_code, root)
                except OSError as exc:
                    why = refusal_of(exc, self.run.root)
                    what = (
                        "how the ranks ended could not be recorded:"
                        f" {why.reason if why else exc.strerror or exc}"
                    )
                    where, hint = str(self.run.root), "only the output above is available"
                    refused.append(codes.LAUNCH_EXITS_LOST(what, where, str(exc), hint, Severity.WARNING))
        return refused[:1]

    def _exits(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        path = self.run.exits(self.node_rank)
        cause = self._redact.diagnostic(root.finding).to_json() if root is not None and root.finding else None
        ranks = [asdict(one) for one in sorted(exits, key=lambda one: one.rank)]
        data = {
            "exit_code": exit_code,
            "rank": root.rank if root is not None else None,
            "cause": cause,
            "ranks": ranks,
        }
        path.parent.mkdir(exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            staged.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            staged.replace(path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise

    def _error_event(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        if root is None or root.finding is None or root.code >= 0:
            return
        log = RunLog(self.run, root.rank, self._redact)
        log.write(Error(root.rank, root.finding))
        log.close()

    def _result(self, exits: Sequence[Exit], exit_code: int, root: Failure | None) -> None:
        if self.node_rank != 0 or root is None or exit_code == ExitCode.CONFIG:
            return
        if _identity(self.run.result_json) not in (None, self._earlier):  # rank 0 has written it
            return
        findings = (root.finding,) if root.finding is not None else ()
        facts = {"checkpoint": "", "rank": root.rank}
        write_result(self.run, "failed", exit_code, facts, findings, redact=self._redact)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns
