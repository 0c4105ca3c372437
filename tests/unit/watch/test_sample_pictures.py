"""Pictures of samples: on the page and in the report, of the run directory alone, within bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from page_runs import begin, step, view_of, write_run

from paceline.core.rundir import RunDir
from paceline.watch.page.documents import samples_of
from paceline.watch.page.report import page_of, report_data
from paceline.watch.page.sample_pictures import MAX_ALL, MAX_PICTURE

JPEG = b"\xff\xd8\xff\xe0 a picture"
DATA = "data:image/jpeg;base64,/9j/4CBhIHBpY3R1cmU="
SECRET = b"\xff\xd8\xffroot:$6$not-for-readers"


def run_with(root: Path, names: Any) -> RunDir:
    row = {"prompt": "what is it", "answer": "a cat", "expected": "a cat", "correct": True, "pictures": names}
    run = write_run(root, [begin(), step(1), {"kind": "answers", "step": 1, "rows": [row]}])
    (root / "pictures").mkdir()
    return run


def shown(run: RunDir, cache: Path) -> dict[str, Any]:
    view = view_of(run, cache)
    groups: Any = samples_of(view, None, 5)["groups"]
    view.close()
    row: dict[str, Any] = groups[0]["rows"][0]
    return row


def test_a_sample_s_pictures_are_on_the_page_and_in_the_report(tmp_path: Path) -> None:
    names = ["a" * 32, "b" * 32]
    run = run_with(tmp_path / "run", names)
    run.picture(names[0]).write_bytes(JPEG)
    row = shown(run, tmp_path / "cache")
    assert (row["pictures"], row["pictures_left_out"]) == ([DATA], 1), "one is missing, and that is said"
    view = view_of(run, tmp_path / "cache-of-report")
    assert DATA in page_of(report_data(view))
    view.close()


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "..%2fsecret", "A" * 32, "a" * 31, 7, None, ["a"]]
)
def test_a_name_that_is_none_opens_nothing(name: Any, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [name])
    for place in (tmp_path / "secret.jpg", run.root / "secret.jpg"):
        place.write_bytes(SECRET)
    assert shown(run, tmp_path / "cache")["pictures"] == []


@pytest.mark.parametrize("what", ["link", "folder link", "no picture", "too large", "FIFO"])
def test_what_is_no_picture_of_the_run_is_not_shown(what: str, tmp_path: Path) -> None:
    name, elsewhere = "a" * 32, tmp_path / "elsewhere"
    run = run_with(tmp_path / "run", [name])
    elsewhere.mkdir()
    (elsewhere / f"{name}.jpg").write_bytes(SECRET)
    path = run.picture(name)
    if what == "link":
        path.symlink_to(elsewhere / path.name)
    elif what == "folder link":
        path.parent.rmdir()
        path.parent.symlink_to(elsewhere)
    elif what == "FIFO":
        os.mkfifo(path)
    else:
        path.write_bytes(b"<svg onload=alert(1)>" if what == "no picture" else JPEG + bytes(MAX_PICTURE))
    assert shown(run, tmp_path / "cache")["pictures"] == []


def test_all_pictures_of_an_answer_are_bounded(tmp_path: Path) -> None:
    names = [f"{number:032x}" for number in range(40)]
    rows = [{"prompt": "p", "answer": "a", "pictures": [name]} for name in names]
    run = write_run(tmp_path / "run", [begin(), {"kind": "answers", "step": 1, "rows": rows}])
    (run.root / "pictures").mkdir()
    for name in names:
        run.picture(name).write_bytes(JPEG + bytes(200 << 10))
    view = view_of(run, tmp_path / "cache")
    groups: Any = samples_of(view, None, 5)["groups"]
    view.close()
    sent = [address for row in groups[0]["rows"] for address in row["pictures"]]
    assert 0 < len(sent) < 40 and sum(map(len, sent)) < MAX_ALL * 4 / 3 + 4000
    assert all(row["pictures_left_out"] for row in groups[0]["rows"][len(sent) :])
