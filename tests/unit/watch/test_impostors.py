"""What has the name of a run's file and is none: no reader hangs, or shows what lies elsewhere."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from page_runs import begin, notice, samples, step, write_run
from test_deleted_meanwhile import READERS, a_run

from paceline.checkpoint.export.exporters import exporters_of
from paceline.checkpoint.export.main import choose
from paceline.checkpoint.node_local.shared_disks import were_one
from paceline.core.errors import PacelineError
from paceline.core.rundir import RunDir
from paceline.generation.settings import stored_config
from paceline.training.exact_match import load_run_config
from paceline.watch.page import documents
from paceline.watch.page.report import report_data
from paceline.watch.page.view import RunView

SECRET = "root:$6$not-for-readers"
SECONDS = 20  # until a reader that waits for ever is interrupted
#: What whoever reads it would show: one object with the keys of every file of a run.
TELLING = {
    "kind": "notice",
    "time": 1.0,
    "rank": 0,
    "diagnostic": {**notice()["diagnostic"], "what": SECRET},
    "diagnostics": [{**notice()["diagnostic"], "what": SECRET}],
    "cause": {**notice()["diagnostic"], "what": SECRET},
    "outcome": SECRET,
    "phase": SECRET,
    "step": 7,
    "since": 1.0,
    "pid": 1,
    "host": SECRET,
    "algorithm": SECRET,
    "strategy": SECRET,
    "config": {"model": {"name_or_path": SECRET}},
    "decisions": [{"key": SECRET}],
    "ranks": [{"rank": 0, "code": 1, "status": SECRET}],
}


def report(run: RunDir, cache: Path) -> object:
    view = RunView(run, cache)
    try:
        while view.advance(1.0) < 1:
            pass
        logs = [documents.log_page(run, str(row["name"]), "", None, 9) for row in documents.log_names(run)]  # type: ignore[index,call-overload]
        named = documents.log_page(run, "training.log", "", None, 9)
        return [report_data(view), logs, named]
    finally:
        view.close()


#: What exports, evaluates and serves a run reads first.
OTHERS: dict[str, Callable[[RunDir, Path], Any]] = {
    "export's checkpoint": lambda run, cache: choose(run.root, "result", []),
    "export's functions": lambda run, cache: exporters_of(None, run.checkpoint(3)),
    "generation's config": lambda run, cache: stored_config(run),
    "answers' config": lambda run, cache: load_run_config(run),
    "the disks": lambda run, cache: were_one(run),
}


def fifo(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path)


def link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "shadow")


def link_to_fifo(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "fifo")


def device(path: Path, elsewhere: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path, elsewhere: Path) -> None:
    path.symlink_to(path)


def folder(path: Path, elsewhere: Path) -> None:
    path.mkdir()


def listening(path: Path, elsewhere: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        server.bind(path.name)
        os.chdir(before)


def huge(path: Path, elsewhere: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


def huge_after_a_line(path: Path, elsewhere: Path) -> None:
    path.write_text('{"a": 1}\n')
    os.truncate(path, 1 << 42)


def unreadable(path: Path, elsewhere: Path) -> None:
    path.write_bytes(b"\xff\0\n" * 9)


IMPOSTORS = [fifo, link, link_to_fifo, device, circle, folder, listening, huge, huge_after_a_line, unreadable]


@contextmanager
def in_time(what: str) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def full(root: Path) -> RunDir:
    run = a_run(root)
    run.config_json.write_text("{}")
    run.heartbeat(0).write_text("{}")
    run.rank_log(0).write_text("a line\n")
    run.exits().write_text("{}")
    run.answers_json.write_text("[]")
    run.disks.write_text("{}")
    run.run_id.write_text("x")
    run.latest.write_text("step-00000003")
    run.profile.mkdir()
    (run.profile / "summary.json").write_text("{}")
    return run


FILES = sorted(
    [
        ".disks", "answers.json", "config.json", "config.yaml", "plan.json", "result.json", "run-id",
        "checkpoints/latest", "checkpoints/step-00000003/manifest.json", "events/exits.json",
        "events/exits-0.json", "events/flight_0.json", "events/rank-00000.events.jsonl",
        "events/rank-00000.heartbeat", "events/rank-00001.events.jsonl", "logs/rank-00000.log",
        "logs/training.log", "profile/summary.json",
    ]
)  # fmt: skip
FOLDERS = ["events", "logs", "checkpoints", "profile"]


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("make", IMPOSTORS)
def test_a_file_that_is_none_neither_hangs_a_reader_nor_shows_another_s_bytes(
    make: Callable[[Path, Path], None], part: int, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "shadow").write_text(json.dumps(TELLING) + "\n")
    os.mkfifo(elsewhere / "fifo")
    full(tmp_path / "whole" / "run")
    assert {
        str(p.relative_to(tmp_path / "whole" / "run"))
        for p in (tmp_path / "whole" / "run").rglob("*")
        if p.is_file()
    } >= set(FILES)  # noqa: E501
    for number, name in enumerate(FILES):
        if (number + IMPOSTORS.index(make)) % 4 != part:
            continue
        run = full(tmp_path / str(number) / "run")
        (run.root / name).unlink()
        make(run.root / name, elsewhere)
        read_all(run, tmp_path / str(number), f"{name} as {make.__name__}")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_a_link_shows_nothing_of_what_it_leads_to(name: str, tmp_path: Path) -> None:
    other = full(tmp_path / "elsewhere" / "run")
    write_run(other.root, [begin(), step(1), samples(1, SECRET)])
    for path in other.root.rglob("*"):
        if path.is_file() and path.suffix in (".log", ".json", ".jsonl", ".heartbeat"):
            path.write_text(json.dumps(TELLING) + "\n")
    run = full(tmp_path / "here" / "run")
    (run.root / name).rename(run.root / "away")
    (run.root / name).symlink_to(other.root / name)
    read_all(run, tmp_path, name)


def read_all(run: RunDir, beside: Path, what: str) -> None:
    readers: dict[str, Callable[[RunDir, Path], Any]] = {**READERS, "report": report, **OTHERS}
    for reader, read in readers.items():
        with in_time(f"{reader}: {what}"), suppress(PacelineError):
            assert SECRET not in repr(read(run, beside / f"cache-{reader}")), f"{reader}: {what}"
