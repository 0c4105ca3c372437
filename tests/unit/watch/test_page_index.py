"""The page's index: the history as ``load_history`` reads it, whatever state the files are in."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
from page_runs import begin, losses, notice, samples, step, view_of, write_run

from paceline.runlog.history import load_history
from paceline.watch.page.columns import Columns, reduced
from paceline.watch.page.view import Runs, RunView


def test_a_resume_replaces_the_steps_after_its_first(tmp_path: Path) -> None:
    lines = [begin(), *(step(n) for n in range(1, 8)), begin(4), *(step(n, 100.0 + n) for n in range(5, 7))]
    run = write_run(tmp_path / "run", lines)
    view = view_of(run, tmp_path / "cache")
    assert losses(view) == {n: e.loss for n, e in load_history(run).steps.items()}
    assert losses(view)[5] == 105.0 and view.summary()["restarts"] == [4]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), step(1)], tail='{"time": 5, "rank": 0, "kind": "step", "st')
    view = view_of(run, tmp_path / "cache")
    assert list(losses(view)) == [1]
    with run.events(0).open("a") as file:
        file.write('ep": 2, "loss": 7.5}\nnot json\n[1]\n{"kind": "step"}\n')
    view.advance(5.0)
    assert losses(view) == {1: 9.0, 2: 7.5}


def test_values_that_are_not_finite_are_marked_and_not_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), step(1), step(2, "NaN"), step(3, float("inf")), step(4)])
    view = view_of(run, tmp_path / "cache")
    curve = view.series(["steps/loss"], "step", 100, None, None)["steps/loss"]
    assert curve["x"] == [1, 4] and curve["lost"] == [2, 3]


def test_reading_goes_on_in_another_process_where_it_ended(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", [begin(), *(step(n, reward=n / 10) for n in range(1, 6)), notice(), samples(5)]
    )
    view = view_of(run, tmp_path / "cache")
    before = view.summary()
    view.close()
    write_run(tmp_path / "run", [step(6)])
    again = RunView(run, tmp_path / "cache")
    assert losses(again) == losses(view)  # nothing is read yet, and all is there
    again.advance(5.0)
    assert len(losses(again)) == 6 and again.summary()["num_samples"] == before["num_samples"] == 1
    assert [row["what"] for row in again.findings()["findings"]] == ["too slow"]


def test_another_file_under_the_same_name_is_read_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), *(step(n) for n in range(1, 6))])
    view = view_of(run, tmp_path / "cache")
    view.close()
    shutil.rmtree(run.root)
    view.advance(5.0)
    assert view.summary()["state"]["name"] == "gone"
    write_run(tmp_path / "run", [begin(total=3), step(1, 4.0)])
    view.advance(5.0)
    assert losses(view) == {1: 4.0} == losses(view_of(run, tmp_path / "cache"))


def test_memory_is_the_maximum_over_ranks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), step(1, memory=10), step(2, memory=30)])
    write_run(
        tmp_path / "run", [begin(), step(1, memory=20), step(2, memory=5), notice("broke", "error")], rank=1
    )
    view = view_of(run, tmp_path / "cache")
    curve = view.series(["peaks/memory"], "step", 10, None, None)["peaks/memory"]
    assert (
        dict(zip(curve["x"], curve["mean"], strict=True)) == load_history(run).peak_memory == {1: 20, 2: 30}
    )
    (error,) = view.findings()["findings"]
    assert error["what"] == "broke" and error["rank"] == 1


def test_no_extreme_value_is_lost_in_a_reduced_curve() -> None:
    source = random.Random(3)
    x = np.arange(1.0, 50_001.0)
    y = np.array([source.gauss(0, 1) for _ in x])
    y[31_337], y[123] = 1e6, np.nan
    curve = reduced(x, y, 300, 20_000.0, 40_000.0)
    inside = y[19_999:40_000]
    assert len(curve["x"]) <= 300 and curve["count"] == 20_001
    assert max(curve["high"]) == 1e6 == inside.max() and min(curve["low"]) == inside.min()
    # Independent: the buckets' means, weighted by their points, are the mean of all
    edges = 20_000 + np.arange(301) * (20_000 / 300)
    parts = np.clip(np.searchsorted(edges, x[19_999:40_000], "right") - 1, 0, 299)
    means = [inside[parts == i].mean() for i in range(300)]
    assert np.allclose(curve["mean"], means, rtol=1e-6, atol=0.05 * 1e6 / 60 * (np.abs(means).max() > 1e3))


def test_columns_that_begin_late_are_missing_before(tmp_path: Path) -> None:
    table = Columns(tmp_path)
    for n in range(20_000):
        table.append({"step": float(n)} | ({"../late": 1.0} if n >= 15_000 else {}))
    late = table.read("../late")
    assert np.isnan(late[:15_000]).all() and (late[15_000:] == 1).all()
    table.cut(15_001)
    assert len(table) == 15_001 == len(table.read("step")) and table.read("../late")[-1] == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".f64"}


def test_the_list_finds_the_last_step_before_long_answers(tmp_path: Path) -> None:
    many = [{"kind": "answers", "step": 300, "rows": [{"answer": "x" * 5000}] * 40}]
    write_run(
        tmp_path / "a" / "run", [notice(), begin(total=1000), *(step(n) for n in range(1, 1001)), *many]
    )
    with Runs(tmp_path, tmp_path / "cache") as runs:
        (row,) = runs.rows()
    assert (row["step"], row["total_steps"], row["loss"]) == (1000, 1000, -990.0) and row["name"] == "a/run"
