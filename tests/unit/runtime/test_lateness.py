"""Who is late by every rank's last heartbeat, each by the limit of its own phase."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.plan.timeouts import DEFAULT_SECONDS, Limit, WaitLimits
from paceline.runtime.failures import stragglers
from paceline.runtime.failures.last_heard import HeartbeatRecord, LastHeardMonitor
from paceline.runtime.failures.stragglers import Collective, RollCall, StragglerMonitor

LIMITS = WaitLimits(Limit(60, "start_key"), Limit(10, "step_key"), Limit(100, "between_key"))


def training(**given: int) -> Any:
    return SimpleNamespace(**{"ddp_timeout": 1800, "start_timeout": None, "step_timeout": None, **given})


def judged(seconds: float, *others: HeartbeatRecord | None, phase: str = "train") -> tuple[str, Any]:
    """What rank 0 finds that has waited so long in ``phase``."""
    roll = RollCall.of(1, 9.0, [None, *others], {}, LIMITS)
    assert RollCall.parsed(roll.text()) == roll
    found = StragglerMonitor(0, LIMITS, 0.0).judge(Collective("all_reduce", 7, "0", "", seconds), phase, roll)
    return ("", None) if found is None else (found.code.removeprefix("runtime."), found)


def test_the_rank_that_waits_for_nobody_is_late_by_the_limit_of_its_step() -> None:
    waits, works = HeartbeatRecord(9, 3, "train", waits=11.0), HeartbeatRecord(9, 3, "train")
    assert judged(9.9, waits, works)[0] == ""
    code, found = judged(10.1, waits, works)
    assert (code, found.where, found.evidence["late_ranks"]) == ("rank_late", "rank 2", [2])
    assert "late in step 4" in found.what and "step_key (now 10 s)" in found.hint
    assert (
        "rank 2 was last at step 3 (train)" in found.found and "rank 0 waits in all_reduce 7" in found.found
    )
    assert judged(10.1, works, works)[1].evidence["late_ranks"] == [1, 2]


@pytest.mark.parametrize(("phase", "limit"), [("start", 60), ("evaluate", 100), ("save", 100)])
def test_what_is_no_step_has_its_own_limit_though_the_others_wait_in_one(phase: str, limit: float) -> None:
    other = HeartbeatRecord(9, 3, phase)
    assert judged(limit - 1, other)[0] == ""
    code, found = judged(limit + 1, other)
    assert code == "rank_late" and found.evidence["phase"] == phase
    assert found.evidence["key"] == ("start_key" if phase == "start" else "between_key")


def test_a_rank_that_has_never_been_heard_is_in_the_start() -> None:
    assert judged(59, None)[0] == "" and judged(61, None)[1].evidence["key"] == "start_key"


def test_a_rank_that_is_silent_meanwhile_is_not_late_but_judged_by_its_silence() -> None:
    wait, stopped = Collective("all_reduce", 7, "0", "", 11.0), HeartbeatRecord(9, 3, "train")
    own = StragglerMonitor(0, LIMITS, 0.0)
    quiet = RollCall.of(1, 20.0, [None, stopped], {1: 16.0}, LIMITS)
    assert own.judge(wait, "train", quiet) is None
    heard = RollCall.of(1, 20.0, [None, stopped], {1: 18.0}, LIMITS)
    found = own.judge(wait, "train", heard)
    assert found is not None and found.code == "runtime.rank_late"


def test_where_all_wait_nobody_is_named() -> None:
    waits = HeartbeatRecord(9, 3, "train", waits=11.0)
    assert judged(11, waits)[0] == "collective_stuck" and "step_key" in judged(11, waits)[1].hint
    assert judged(11, waits, phase="save")[0] == ""
    assert judged(11, HeartbeatRecord(9, 3, "train", done=True))[0] == "collective_stuck"


def test_it_looks_often_enough_for_a_short_limit_and_seldom_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    for seconds in (1.0, 4.0, DEFAULT_SECONDS):
        own = StragglerMonitor(0, WaitLimits.same(seconds), 0.0)
        monkeypatch.setattr(stragglers, "active", lambda: looks.append(0.0) or [])
        looks.clear()
        for tick in range(1, 41):
            own.look(tick / 4)
        assert len(looks) == {1.0: 20, 4.0: 10, DEFAULT_SECONDS: 2}[seconds]


def test_a_wait_is_told_by_the_heartbeat_before_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time_ns() - int(8e9)
    entry = {"profiling_name": "gloo:all_reduce", "time_created_ns": began, "state": "scheduled"}
    monkeypatch.setattr(stragglers, "dump_entries", lambda: json.dumps({"entries": [entry]}))
    own = StragglerMonitor(0, LIMITS, 0.0)
    assert own.look(10.0) is None and own.waits == pytest.approx(8, abs=1.5)
    assert HeartbeatRecord.of(HeartbeatRecord(1, waits=own.waits).text()) == HeartbeatRecord(
        1, waits=own.waits
    )


def test_limits_that_are_not_set_are_those_of_ddp_timeout() -> None:
    assert WaitLimits.of(training()) == WaitLimits.same(1800)
    own = WaitLimits.of(training(start_timeout=60, step_timeout=30))
    assert [own.in_phase(p).seconds for p in ("start", "train", "evaluate", "rollout", "end")] == [
        60,
        30,
        1800,
        1800,
        1800,
    ]
    assert [WaitLimits.of(training(**given)).meet_seconds for given in ({}, {"ddp_timeout": 90})] == [600, 90]
    assert WaitLimits.of(training(start_timeout=3000)).meet_seconds == 3000
    longer = WaitLimits.of(training(step_timeout=7200))
    assert longer.in_phase("save") == Limit(7200, "training.step_timeout")
    assert longer.start == Limit(1800, "training.ddp_timeout")


def test_a_silent_rank_has_the_limit_of_what_it_was_last_heard_to_do() -> None:
    vigil = LastHeardMonitor([1, 2, 3], 0.0, 5, limits=LIMITS)
    vigil.hear(1, HeartbeatRecord(1, 3, "train").text(), 1)
    vigil.hear(2, HeartbeatRecord(1, 3, "save").text(), 1)
    assert vigil.overdue(20, 4) == [1] and vigil.limit(1).key == "step_key"
    assert vigil.overdue(62, 4) == [1, 3] and vigil.overdue(102, 4) == [1, 2, 3]
    assert vigil.overdue(20, 30) == []
    [said] = [d for d in vigil.news(20) if d.where == "rank 1"]
    assert "10 s (step_key)" in said.hint


def test_a_roll_call_is_bounded_and_hides_no_rank_of_another_limit() -> None:
    """16 ranks are shown in a message; one that evaluates among many that train may be the late one."""
    beats = [HeartbeatRecord(9, 3, "train", place="x" * 200) for _ in range(4096)]
    beats[4000] = HeartbeatRecord(9, 3, "evaluate")
    roll = RollCall.of(1, 9.0, beats, dict.fromkeys(range(1, 4096), 0.0), LIMITS)
    assert [rank for rank, _ in roll.busy] == [*range(17), 4000]
    assert len(roll.text()) < 10_000 and RollCall.parsed(roll.text()) == roll


def test_silent_is_who_was_not_heard_between_two_roll_calls_and_has_not_ended() -> None:
    beats = [HeartbeatRecord(9), HeartbeatRecord(9), HeartbeatRecord(9, done=True), None]
    first = RollCall.of(1, 10.0, beats, {1: 9.5, 2: 3.0, 3: 0.0}, LIMITS)
    assert RollCall.of(2, 14.0, beats, {1: 9.9, 2: 3.0, 3: 0.0}, LIMITS).silent_since(first) == [1, 3]
    assert RollCall.of(2, 14.0, beats, {1: 10.1, 2: 3.0, 3: 13.9}, LIMITS).silent_since(first) == []


@pytest.mark.parametrize("text", [None, "", "[]", "7", '[1, 2, [["x", "{}"]], [], []]', "[" * 99_999])
def test_what_is_no_roll_call_is_none(text: str | None) -> None:
    assert RollCall.parsed(text) is None
