"""Starts of a run whose number of nodes may change between them (``launch.nodes``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.launch import codes
from paceline.launch.network import DEFAULT_PORT
from paceline.launch.run_secret import read_secret
from paceline.launch.supervision.exit_codes import decisive
from paceline.launch.supervision.membership import Ended, FirstNode, Lineup, OtherNode
from paceline.launch.supervision.restarts import Restarts, RunEnd, wait
from paceline.plan.timeouts import MEET_SECONDS

if TYPE_CHECKING:
    from paceline.config.sections.launch import LaunchSection

RESTARTS = 3  # unless launch.max_restarts says otherwise


@dataclass(frozen=True)
class ElasticStart:
    """``attempt``: starts this node's part with a line-up, and ends it once its argument is true; returns
    how it ended. ``stops``: whether the run is to stop; ``note``: records a finding.
    """

    launch: LaunchSection
    attempt: Callable[[Lineup, Callable[[], bool]], RunEnd]
    stops: Callable[[], bool]
    report: Callable[[str], None]
    note: Callable[[Diagnostic], None]

    def run(self) -> int:
        """Start as often as it is due; return this node's exit code."""
        port = (self.launch.master_port or DEFAULT_PORT) + 1
        address, secret = (self.launch.master_addr, port), read_secret(os.environ)
        if self.launch.node_rank:
            return self._other(OtherNode(address, secret, self.launch.node_rank))
        least, most = self.launch.range_of_nodes
        return self._first(FirstNode(address, secret, least, most, self.launch.rejoin_timeout))

    def _first(self, first: FirstNode) -> int:
        limit = self.launch.max_restarts
        restarts = Restarts(RESTARTS if limit is None else limit)
        result: Lineup | Ended = Ended(int(ExitCode.FAILED))
        try:
            result = first.line_up(self.report, self.stops, resumes=False, patience=MEET_SECONDS)
            while isinstance(result, Lineup):
                self._report_fewer(first, result)
                result = self._once(first, result, restarts)
            if result.finding is not None:
                self._print(result.finding)
        finally:
            first.close(result if isinstance(result, Ended) else Ended(int(ExitCode.PEER_FAILED)))
        return result.code

    def _once(self, first: FirstNode, lineup: Lineup, restarts: Restarts) -> Lineup | Ended:
        grown = list[bool]()

        def stops() -> bool:
            first.poll()
            if not grown and first.grows():
                grown.append(True)
                self.report("a node is back: the run saves, and goes on with it")
            return bool(grown) or self.stops()

        own = self.attempt(lineup, stops)
        others = first.ends(self.launch.rejoin_timeout, self.stops)
        code = decisive([own.code, *(end.code for end in others)])
        cause = next(end for end in (own, *others) if end.code == code)
        stopped = any(end.stopped for end in others) or (own.signalled if grown else own.stopped)
        # a node that is gone took its leave in order, or one is back
        changes = code == ExitCode.STOPPED and not stopped and (bool(grown) or first.misses())
        if not changes:
            for finding in first.count() if code not in (ExitCode.OK, ExitCode.STOPPED) else ():
                self._print(finding)
            end = replace(cause, step=own.step, saved=own.saved, stopped=stopped)
            note = restarts.after(end)
            if note is None or note.severity is Severity.ERROR:
                return Ended(code, note)
            self._print(note)
            if not wait(restarts.pause, self.stops):
                return Ended(code)
        return first.line_up(self.report, self.stops, resumes=True)

    def _other(self, other: OtherNode) -> int:
        code = int(ExitCode.OK)
        try:
            result = other.line_up(self.report, self.stops, MEET_SECONDS)
            while isinstance(result, Lineup):
                end = self.attempt(result, self.stops)
                code = end.code
                other.report_end(end)
                result = other.line_up(self.report, self.stops, self.launch.rejoin_timeout)
        finally:
            other.close()
        if result.finding is not None:
            self._print(result.finding)
        return result.code or code

    def _report_fewer(self, first: FirstNode, lineup: Lineup) -> None:
        absent = [first.name(node) for node in range(first.most) if node not in lineup.nodes]
        if absent:
            count, most, without = len(lineup.nodes), first.most, ", ".join(absent)
            self._print(codes.LAUNCH_FEWER_NODES("launch.nodes", without, count=count, most=most))

    def _print(self, finding: Diagnostic) -> None:
        self.report(finding.render())
        self.note(finding)
