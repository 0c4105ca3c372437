"""Which ends of a run are followed by a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.core.rundir import RunDir
from paceline.launch.supervision.restarts import Restarts, RunEnd, last_step

KILLED = "launch.worker_killed"


def end(code: int = 137, error: str = KILLED, step: int = 5, saved: str = "") -> RunEnd:
    return RunEnd(code, error, step, saved)


def said(limit: int, *ends: RunEnd) -> list[str]:
    restarts = Restarts(limit)
    return [(note := restarts.after(each)) and note.code or "" for each in ends]


AGAIN, SAME, USED = "launch.restart", "launch.same_error", "launch.restarts_used"


@pytest.mark.parametrize(
    ("limit", "ends", "expected"),
    [
        pytest.param(0, [end()], [""], id="without the key"),
        *(pytest.param(3, [end(code)], [""], id=f"exit code {code}") for code in (0, 2, 70, 75, 130)),
        *(
            pytest.param(3, [end(code)], [AGAIN], id=f"exit code {code}")
            for code in (1, 76, 77, 134, 139, 143)
        ),
        pytest.param(3, [RunEnd(77, "runtime.collective_stuck", 5, "", True)], [""], id="after a stop"),
        pytest.param(3, [end(), end()], [AGAIN, SAME], id="the same error at the same step"),
        pytest.param(3, [end(), end(step=6), end(step=6)], [AGAIN, AGAIN, SAME], id="the same, later"),
        pytest.param(3, [end(), end(error="data.changed")], [AGAIN, AGAIN], id="another at that step"),
        pytest.param(3, [end(76, "")] * 3, [AGAIN] * 3, id="others failed, nobody knows of what"),
        pytest.param(2, [end(step=n) for n in range(3)], [AGAIN, AGAIN, USED], id="no newer checkpoint"),
        pytest.param(
            1, [end(step=n, saved=f"step-{n}") for n in range(4)], [AGAIN] * 4, id="newer checkpoints"
        ),
    ],
)
def test_what_can_heal_starts_again(limit: int, ends: list[RunEnd], expected: list[str]) -> None:
    assert said(limit, *ends) == expected


def test_pauses_double_up_to_a_minute() -> None:
    restarts = Restarts(20)
    pauses = []
    for step in range(9):
        restarts.after(end(step=step))
        pauses.append(restarts.pause)
    assert pauses == [0, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([], 0),
        (["run_started", 1, 2], 2),
        (["run_started", 1, 2, "run_started"], 0),
        (["run_started", 1, "notice"], 1),
    ],
)
def test_the_last_step_is_that_of_the_last_start(lines: list[object], step: int, tmp_path: Path) -> None:
    run = RunDir.at(tmp_path)
    run.events_dir.mkdir()
    events = [{"kind": x} if isinstance(x, str) else {"kind": "step", "step": x} for x in lines]
    run.events(0).write_text("".join(json.dumps(event) + "\n" for event in events) + '{"kind":"st')
    assert last_step(run, 0) == step
