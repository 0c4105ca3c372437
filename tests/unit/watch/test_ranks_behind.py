"""Which ranks the page calls behind, and the memory that it compares with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from page_runs import begin, step, view_of, write_run

from paceline.watch.page.view import planned_bytes


def slowest(folder: Path, steps: list[int], seconds: float = 1.0, silent: int = -1) -> dict[int, bool]:
    """Return whether each of the ranks, with heartbeats at ``steps``, is behind."""
    lines = [begin(total=1000), *({**step(n), "step_seconds": seconds} for n in range(1, 100))]
    run = write_run(folder, lines, plan={"world_size": len(steps)})
    for rank, at in enumerate(steps):
        written = time.time() - (60 if rank == silent else 0)
        beat = {"time": written, "step": at, "phase": "step", "since": written, "pid": 1, "host": "h"}
        run.heartbeat(rank).parent.mkdir(parents=True, exist_ok=True)
        run.heartbeat(rank).write_text(json.dumps(beat))
    summary: Any = view_of(run, folder / "cache").summary()
    return {row["rank"]: row["behind"] for row in summary["ranks"]["slowest"]}


@pytest.mark.parametrize(
    ("steps", "seconds", "behind"),
    [
        ([99, 99, 98, 99], 10.0, set()),  # within a step
        ([99, 97, 98, 99], 1.0, set()),  # heartbeats of different times
        ([99, 99, 90, 99], 1.0, {2}),
        ([99, 99, 60, 99], 0.1, set()),  # many steps between two heartbeats
        ([99, 99, 50, 99], 0.1, {2}),
        ([40, 40, 40, 40], 1.0, set()),  # the events are newer than all heartbeats
    ],
)
def test_a_rank_within_the_margin_of_the_median_is_not_behind(
    steps: list[int], seconds: float, behind: set[int], tmp_path: Path
) -> None:
    found = slowest(tmp_path / "run", steps, seconds)
    assert {rank for rank, late in found.items() if late} == behind and len(found) == len(steps)


def test_a_silent_rank_is_behind(tmp_path: Path) -> None:
    assert slowest(tmp_path / "run", [99, 99], silent=1) == {0: False, 1: True}


@pytest.mark.parametrize("plan", [{}, {"algorithm": "sft"}, {"algorithm": "sft", "strategy": "mine:SPEC"}])
def test_memory_of_an_unreadable_plan_or_of_own_code_is_not_expected(plan: dict[str, Any]) -> None:
    assert planned_bytes(plan) is None
