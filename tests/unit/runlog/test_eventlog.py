"""The event file survives what happens to files: torn lines, restarts, full disks, foreign content."""

import json
import math
import os
from pathlib import Path

import pytest

from paceline.core.diagnostics import Diagnostic
from paceline.runlog.events import (
    KINDS,
    Answers,
    CheckpointSaved,
    Error,
    Eval,
    Event,
    EventLog,
    EventTail,
    Finished,
    Notice,
    RunStarted,
    Samples,
    Step,
    TimeBands,
    Unknown,
    from_json,
    read_events,
    to_json,
)
from paceline.runlog.redact import Redactor

ALL = [
    RunStarted("abc", 2, "checkpoints/step-00000005", 5, 10, "tiny"),
    Step(
        6,
        0.5,
        1.25,
        {"nll": 1.25},
        {"nll": 99},
        1e-4,
        0.7,
        99,
        0.5,
        198.0,
        0.4,
        1 << 30,
        None,
        "d" * 8,
        {"loss_scale": 2.0},
    ),
    Eval(6, {"eval_loss": 1.0}, 0.1, 99),
    CheckpointSaved(6, "p", 0.2, 10),
    Notice(Diagnostic("a.b", "what", evidence={"n": 1})),
    Error(1, Diagnostic("a.b", "what")),
    Answers(6, [{"prompt": "p", "answer": "NaN", "expected": "7", "correct": False}]),
    Finished("completed", 6, 1.0),
    Samples(6, [{"prompt": "p", "completion": "c", "reward": 1.0, "reward/a": None}]),
    TimeBands(6, 10.0, 0.5, 7.0, 2.0, 0.25, 0.25, 6),
]


@pytest.mark.parametrize("event", ALL, ids=lambda e: e.kind)
def test_every_kind_survives_the_file(event: Event, tmp_path: Path) -> None:
    with EventLog(tmp_path / "e.jsonl", rank=3, clock=lambda: 12.5) as log:
        log.write(event)
    (record,) = read_events(tmp_path / "e.jsonl")
    assert (record.time, record.rank, record.event) == (12.5, 3, event)


def test_all_kinds_are_covered_above() -> None:
    assert {e.kind for e in ALL} == set(KINDS)


def test_not_finite_numbers_are_strict_json_and_come_back(tmp_path: Path) -> None:
    step = Step(1, 0.0, math.nan, {"nll": math.inf}, grad_norm=-math.inf)
    text = json.dumps(to_json(step), allow_nan=False)
    back = from_json(json.loads(text))
    assert isinstance(back, Step)
    assert math.isnan(back.loss) and back.losses["nll"] == math.inf and back.grad_norm == -math.inf


def test_text_that_looks_like_nan_stays_text() -> None:
    back = from_json(to_json(ALL[6]))
    assert isinstance(back, Answers) and back.rows[0]["answer"] == "NaN"


def test_torn_last_line_is_left_out_and_closed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with EventLog(path, 0) as log:
        log.write(ALL[0])
    with path.open("ab") as file:
        file.write(b'{"time": 1, "rank": 0, "kind": "st')
    assert len(read_events(path)) == 1
    with EventLog(path, 0) as log:
        log.write(ALL[7])
    assert [r.event.kind for r in read_events(path)] == ["run_started", "finished"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"time":"x","rank":0}',
        b"\xff\xfe",
        b"[" * 5000,
        b'{"time":1,"rank":null,"kind":"step"}',
    ],
)
def test_foreign_lines_are_left_out(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(line + b"\n" + json.dumps({"time": 1, "rank": 0, **to_json(ALL[7])}).encode() + b"\n")
    assert [r.event.kind for r in read_events(path)] == ["finished"]


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "brand_new", "x": 1},
        {"kind": "step", "step": 1},
        {"kind": "step", "step": 1, "epoch": 0, "loss": "seven"},
        {"kind": "notice", "diagnostic": 3},
    ],
)
def test_what_cannot_be_understood_is_kept_as_unknown(data: dict) -> None:
    assert from_json(data) == Unknown(data["kind"], data)


def test_tail_gives_each_event_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    tail = EventTail(path)
    assert tail.poll() == []
    whole = json.dumps({"time": 1, "rank": 0, **to_json(ALL[7])}).encode() + b"\n"
    path.write_bytes(whole[:10])
    assert tail.poll() == []
    with path.open("ab") as file:
        file.write(whole[10:] + whole)
    assert len(tail.poll()) == 2
    assert tail.poll() == []


def test_tail_starts_over_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    whole = json.dumps({"time": 1, "rank": 0, **to_json(ALL[7])}).encode() + b"\n"
    path.write_bytes(whole)
    tail = EventTail(path)
    tail.poll()
    (tmp_path / "new").write_bytes(whole * 2)
    os.replace(tmp_path / "new", path)
    assert len(tail.poll()) == 2


def test_full_disk_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "e.jsonl", 0)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write(ALL[0])
    log.write(ALL[0])
    assert log.lost == 2
    monkeypatch.setattr(os, "write", real)
    log.write(ALL[7])
    log.close()
    first, second = (r.event for r in read_events(tmp_path / "e.jsonl"))
    assert (
        isinstance(first, Notice)
        and first.diagnostic.code == "runlog.events_lost"
        and "2 events" in first.diagnostic.what
    )
    assert second == ALL[7]


def test_short_write_costs_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "e.jsonl", 0)
    real, calls = os.write, []

    def cut(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data[:20])

    monkeypatch.setattr(os, "write", cut)
    log.write(ALL[0])
    assert (tmp_path / "e.jsonl").read_bytes() == b""  # no half a line
    monkeypatch.setattr(os, "write", real)
    log.write(ALL[7])
    log.close()
    assert [r.event.kind for r in read_events(tmp_path / "e.jsonl")] == ["notice", "finished"]


def test_a_kernel_that_takes_a_line_in_pieces_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "e.jsonl", 0)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
    log.write(ALL[1])
    log.close()
    assert [r.event for r in read_events(tmp_path / "e.jsonl")] == [ALL[1]] and log.lost == 0


def test_symlink_at_the_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "e.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        EventLog(tmp_path / "e.jsonl", 0)
    assert (tmp_path / "victim").read_text() == "keep"


def test_secrets_do_not_reach_the_file(tmp_path: Path) -> None:
    secret = 'hf_se"cret\\value'  # characters that JSON escapes
    with EventLog(tmp_path / "e.jsonl", 0, redact=Redactor([secret])) as log:
        log.write(Error(0, Diagnostic("a.b", f"url with {secret} in it", evidence={secret: [secret]})))
    assert "se" + '\\"' not in (tmp_path / "e.jsonl").read_text()
    assert "***" in (tmp_path / "e.jsonl").read_text()


def test_write_after_close_does_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl", 0)
    log.close()
    log.close()
    log.write(ALL[0])
    assert read_events(tmp_path / "e.jsonl") == []
