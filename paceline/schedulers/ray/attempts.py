"""Attempts of a job whose nodes are remote: each starts all nodes, and the failed node's code decides."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.core.errors import ExitCode
from paceline.launch.supervision.exit_codes import After, after, decisive


class Nodes(Protocol):
    """The nodes of one attempt, by their number."""

    def start(self) -> None:
        """Start a launcher on each."""
        ...

    def wait(self, running: Sequence[int]) -> list[int | None]:
        """Wait a moment; return the exit code of each of ``running``, None while it runs."""
        ...

    def stop(self, running: Sequence[int]) -> None:
        """Tell the launchers to save and leave."""
        ...

    def kill(self, running: Sequence[int]) -> None:
        """Kill the launchers."""
        ...


@dataclass
class Stop:
    """Whether somebody ends the job."""

    requested: bool = False


def report(text: str) -> None:
    """Print a line of the job's log."""
    print(f"paceline: {text}", file=sys.stderr, flush=True)


def run_to_end(nodes: Nodes, count: int, grace: float, stop: Stop) -> int:
    """Start the nodes and return the code that decides.

    Once one has failed, or a stop was requested, the others have ``grace`` seconds.
    """
    nodes.start()
    ended: dict[int, int] = {}
    deadline, stopping = float("inf"), False
    while running := [node for node in range(count) if node not in ended]:
        if stop.requested and not stopping:
            stopping, deadline = True, time.monotonic() + grace
            nodes.stop(running)
        for node, code in zip(running, nodes.wait(running), strict=True):
            if code is not None:
                report(f"node {node} has ended with exit code {code}")
                ended[node] = code
        if any(ended.values()) and deadline == float("inf"):
            deadline = time.monotonic() + grace
        if time.monotonic() > deadline:
            left = [node for node in running if node not in ended]
            report(f"nodes {left} have not left within {grace:.0f} s: they are killed")
            nodes.kill(left)
            deadline += grace
    return decisive(ended.values())


def repeat(attempt: Callable[[], int], max_restarts: int, stop: Stop) -> int:
    """Start the job until nothing more follows, and return its exit code."""
    failures = 0
    while True:
        code = attempt()
        follows = after(code)
        if follows is After.DONE:
            return int(ExitCode.OK)
        failures += follows is After.COUNT
        if follows is After.FAIL or stop.requested or failures > max_restarts:
            report(
                f"exit code {code}: {follows.value if not stop.requested else 'stopped'}; this job ends here"
            )
            return code
        report(f"exit code {code}: all nodes start again; failures so far: {failures} of {max_restarts}")
