"""The share of a run's time that its steps have used: what starts, saves, idle times and lost steps cost."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.runlog.effective_time import EffectiveTime


def of(*events: dict[str, Any], now: float) -> dict[str, Any]:
    total = EffectiveTime()
    for event in events:
        total.take(event)
    return total.to_json(now)


def start(time: float, step: int = 0, setup: float = 5.0) -> dict[str, Any]:
    return {"kind": "run_started", "time": time, "start_step": step, "setup_seconds": setup}


def step(number: int, time: float, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "time": time, "step_seconds": 2.0, "data_seconds": 0.5, **more}


def error(time: float) -> dict[str, Any]:
    return {"kind": "error", "time": time, "diagnostic": {"code": "data.worker_died"}}


def test_a_run_in_one_go() -> None:
    events = [start(105.0), *(step(i, 105 + 3 * i) for i in range(1, 5))]
    saved = {"kind": "checkpoint", "step": 4, "time": 120.0, "seconds": 2.5}
    measured = {"kind": "eval", "step": 4, "time": 119.0, "seconds": 1.5}
    found = of(*events, measured, saved, now=120.0)
    assert found["seconds"] == 20.0 and found["share"] == pytest.approx(8 / 20)
    kinds = {name: value for name, value in found.items() if name.endswith("_seconds")}
    assert kinds == {
        "useful_seconds": 8.0,
        "startup_seconds": 5.0,
        "data_seconds": 2.0,
        "save_seconds": 2.5,
        "evaluation_seconds": 1.5,
        "lost_seconds": 0.0,
        "skipped_seconds": 0.0,
        "idle_seconds": 0.0,
        "other_seconds": 1.0,
    }
    assert (found["starts"], found["lost_steps"], found["losses"]) == (1, 0, [])


def test_steps_that_are_made_again_were_lost_and_have_a_cause() -> None:
    first = [start(105.0), *(step(i, 105 + 3 * i) for i in range(1, 7)), error(124.0)]
    second = [start(140.0, 4), step(5, 143.0), step(6, 146.0), step(7, 149.0)]
    killed = [start(160.0, 4), step(5, 163.0)]
    found = of(*first, *second, *killed, now=165.0)
    assert found["useful_seconds"] == 10.0 and found["starts"] == 3
    assert found["idle_seconds"] == pytest.approx((135 - 124) + (155 - 149))
    assert [(loss["step"], loss["back_to"], loss["seconds"]) for loss in found["losses"]] == [
        (6, 4, 4.0),
        (7, 4, 6.0),
    ]
    assert found["losses"][0]["cause"] == "data.worker_died"
    assert "killed" in found["losses"][1]["cause"] and found["lost_steps"] == 5
    parts = sum(value for name, value in found.items() if name.endswith("_seconds"))
    assert parts == pytest.approx(found["seconds"]) and found["seconds"] == 65.0


def test_a_way_back_in_the_same_process_is_no_start() -> None:
    events = [start(105.0), step(1, 108.0), step(2, 111.0), start(112.0, 1, setup=0.0)]
    found = of(*events, step(2, 115.0, skipped="spike"), now=115.0)
    assert found["starts"] == 1 and found["idle_seconds"] == 0.0 and found["useful_seconds"] == 2.0
    assert [(loss["cause"], loss["steps"]) for loss in found["losses"]] == [("training.spike", 1)]
    assert found["skipped_seconds"] == 2.0


def test_a_process_that_waited_for_its_start_counts_from_the_end_before() -> None:
    found = of(start(105.0), step(1, 110.0), error(111.0), start(120.0, 1, setup=60.0), now=121.0)
    assert (found["idle_seconds"], found["startup_seconds"]) == (0.0, 5.0 + 9.0)


def test_what_is_odd_in_a_file_breaks_nothing() -> None:
    assert of(now=5.0) == {} and of(step(3, 1.0), now=5.0) == {}
    found = of(start(5.0, 9), step(10, 8.0, step_seconds="NaN"), {"kind": "step"}, {"x": 1}, now=9.0)
    assert found["useful_seconds"] == 0.0 and found["seconds"] == 9.0
