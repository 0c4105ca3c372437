"""What the ranks' time goes to, on the page of a run that has no result: it trains, or it was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_runs import begin, notice, step, view_of, write_run

SECONDS = {"data": 1.0, "compute": 6.0, "wait": 2.0, "save": 0.5, "evaluation": 0.5, "seconds": 10.0}


def bands(number: int, **changed: float) -> dict[str, object]:
    return {"kind": "time_bands", "step": number, **SECONDS, **changed}


def test_bands_are_shown_before_a_run_has_ended_and_after_it_failed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), step(1), bands(1)])
    write_run(tmp_path / "run", [begin(), step(1), bands(1, compute=2.0, wait=6.0)], rank=1)
    view = view_of(run, tmp_path / "cache")
    assert view.summary()["bands"] == {**SECONDS, "compute": 4.0, "wait": 4.0}
    write_run(tmp_path / "run", [step(2), bands(2), notice(kind="error")])
    view.advance(5.0)
    view.close()
    again = view_of(run, tmp_path / "cache")  # goes on from what the first one has kept
    assert again.summary()["bands"] == pytest.approx(
        {"data": 1.5, "compute": 7.0, "wait": 5.0, "save": 0.75, "evaluation": 0.75, "seconds": 15.0}
    )
    again.close()


def test_a_new_start_begins_anew_and_what_is_no_number_counts_nothing(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = [begin(), bands(1), bands(2, compute=-5.0), begin(start=1), step(2), bands(2, wait="NaN")]  # type: ignore[arg-type]
        run = write_run(tmp_path / "run", lines, rank=rank)
    view = view_of(run, tmp_path / "cache")
    assert view.summary()["bands"] == {**SECONDS, "wait": 0.0}
    view.close()
