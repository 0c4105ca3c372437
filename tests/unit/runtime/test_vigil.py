"""Who is silent and who is slow, by a clock that the test turns."""

from __future__ import annotations

import pytest

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.runtime.failures.last_heard import HeartbeatRecord, LastHeardMonitor, PauseDetector


def codes(found: list[Diagnostic]) -> list[tuple[str, str]]:
    return [(d.code.removeprefix("runtime."), d.where) for d in found]


def test_a_silence_is_said_once_and_so_is_its_end() -> None:
    vigil = LastHeardMonitor([1, 2], now=0.0, warn_seconds=30, sign=lambda rank: f"sign of {rank}")
    for now in range(1, 100):
        vigil.hear(2, HeartbeatRecord(now).text(), now)
        if now <= 40:
            vigil.hear(1, HeartbeatRecord(min(now, 5), 12, "train").text(), now)
        found = vigil.news(now)
        assert codes(found) == ([("rank_quiet", "rank 1")] if now == 36 else [])
        if found:
            assert found[0].severity is Severity.WARNING and "31 s" in found[0].what
            assert found[0].found == "rank 1 was last at step 12 (train); sign of 1"
    assert vigil.silent(99, 60) == [1] and vigil.silent(99, 95) == []
    vigil.hear(1, HeartbeatRecord(6).text(), 100)
    assert codes(vigil.news(100)) == [("rank_back", "rank 1")] and vigil.news(101) == []


def test_who_has_said_goodbye_is_not_missed_and_who_never_came_is() -> None:
    vigil = LastHeardMonitor([1, 2], now=0.0, warn_seconds=30)
    vigil.hear(1, HeartbeatRecord(1, done=True).text(), 1)
    assert vigil.silent(1000, 30) == [2] and codes(vigil.news(1000)) == [("rank_quiet", "rank 2")]


def test_a_value_that_stands_still_is_no_sign_of_life() -> None:
    vigil = LastHeardMonitor([1], now=0.0, warn_seconds=30)
    for now in range(1, 50):
        vigil.hear(1, HeartbeatRecord(7).text(), now)
        vigil.hear(1, None, now)
        vigil.hear(1, HeartbeatRecord(3).text(), now)  # an old one, written again
    assert vigil.silent(49, 40) == [1]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "[]",
        "7",
        '{"count": "x"}',
        '{"count": 1e999}',
        "[" * 99_999,
        '{"count": null, "step": 1}',
    ],
)
def test_what_is_no_beat_is_none(text: str | None) -> None:
    assert HeartbeatRecord.of(text) is None


def test_a_beat_goes_to_and_fro() -> None:
    beat = HeartbeatRecord(3, 7, "train", 0.25, True)
    assert HeartbeatRecord.of(beat.text()) == beat


def test_time_in_which_nobody_listened_counts_against_nobody() -> None:
    vigil = LastHeardMonitor([1], now=0.0, warn_seconds=30)
    vigil.forgive(100, 101)
    assert vigil.silent(110, 30) == [] and vigil.silent(140, 30) == [1]
    vigil.doubt(90)
    assert vigil.silent(141, 30) == [1]


def test_a_rank_that_stands_still_most_of_the_time_is_named_once_as_slow() -> None:
    vigil = LastHeardMonitor([1], now=0.0, warn_seconds=30)
    said = []
    for now, lost in enumerate([0.0, 0.3, 0.75, 0.8, 0.4, 0.7, 0.1, 0.6]):
        vigil.hear(1, HeartbeatRecord(now + 1, 5, "train", lost).text(), now)
        said += [(now, d.code, d.what) for d in vigil.news(now)]
    assert [(now, code) for now, code, _ in said] == [(2, "runtime.rank_slow"), (7, "runtime.rank_slow")]
    assert "75%" in said[0][2]


def test_a_pulse_knows_what_share_of_the_time_was_lost() -> None:
    pulse = PauseDetector(10, now=0.0)
    for second in range(1, 5):
        pulse.tick(second, 0.75)
    assert pulse.lost(4) == 0.0, "too early to tell"
    for second in range(5, 31):
        pulse.tick(second, 0.75)
    assert pulse.lost(30) == pytest.approx(0.75, abs=0.08)
    for second in range(31, 60):
        pulse.tick(second, 0.0)
    assert pulse.lost(59) == 0.0
