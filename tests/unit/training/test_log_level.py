"""``training.log_level``: the least severe line on the console and in ``logs/``; events hold everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.schema import SECTIONS, Config
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.rundir import RunDir
from paceline.runlog import events
from paceline.runlog.lines import VERBOSE
from paceline.runlog.log import is_written
from paceline.runlog.redact import Redactor
from paceline.training.reporting.observers import Observers

HAPPENED = [
    events.Step(step=1, epoch=0.1, loss=2.5),
    events.Step(step=2, epoch=0.2, loss=2.25),
    events.Eval(2, {"eval_loss": 2.0}),
    events.Notice(Diagnostic("x.note", "a note", severity=Severity.NOTE)),
    events.Notice(Diagnostic("x.warning", "a warning", severity=Severity.WARNING)),
]
FATAL = events.Error(0, Diagnostic("x.end", "what ended it"))
WORDS = {
    "step 1": "debug",
    "step 2": "info",
    "evaluation": "info",
    "plain words": "info",
    "x.note": "info",
    "x.warning": "warning",
}


def run(folder: Path, level: str) -> RunDir:
    """A run at ``level`` in which all this happens, steps logged every 2."""
    config = Config.from_json({"training": {"log_level": level, "logging_steps": 2, "report_to": []}})
    where = RunDir.at(folder / level)
    observers = Observers(where, 0, config, {}, Redactor())  # type: ignore[arg-type]
    observers.begin(events.RunStarted("0" * 64, 1, total_steps=9))
    for event in HAPPENED:
        observers.hear(event)
    observers.message("plain words")
    observers.failed(FATAL, "")
    return where


def expected(level: str) -> set[str]:
    order = ["debug", "info", "warning", "error"]
    least = {"passive": "info", "detail": "debug", "critical": "error"}.get(level, level)
    return {word for word, own in WORDS.items() if order.index(own) >= order.index(least)}


LEVELS = SECTIONS["training"].model_fields["log_level"].metadata[0].func.choices


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_decides_what_is_written(
    level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = run(tmp_path, level)
    said = capsys.readouterr().out
    for text in (said, where.training_log.read_text(), where.rank_log(0).read_text()):
        assert {word for word in WORDS if word in text} == expected(level)
    assert "what ended it" in where.training_log.read_text()
    kinds = [json.loads(line)["kind"] for line in where.events(0).read_text().splitlines()]
    assert kinds.count("step") == 2 and kinds.count("notice") == 2, "events hold everything"


def test_a_note_before_the_console_is_there_obeys_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_json({"training": {"log_level": "error"}})
    observers = Observers(RunDir.at(tmp_path), 0, config, {}, Redactor())  # type: ignore[arg-type]
    observers.note(Diagnostic("x.warning", "a warning", severity=Severity.WARNING))
    observers.close()
    observers.log.close()
    assert capsys.readouterr().out == ""


def test_every_level_and_severity_has_its_rank() -> None:
    for level in LEVELS:
        assert all(is_written(severity.value, level) in (True, False) for severity in Severity)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"logging_steps": 2}, [2, 4]),
        ({"logging_steps": 3, "logging_first_step": True}, [1, 3]),
        ({"logging_steps": 9}, []),
    ],
)
def test_console_and_log_tell_of_the_same_steps(
    keys: dict[str, object], steps: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_json({"training": {**keys, "report_to": []}})
    where = RunDir.at(tmp_path)
    observers = Observers(where, 0, config, {}, Redactor())  # type: ignore[arg-type]
    observers.begin(events.RunStarted("0" * 64, 1, total_steps=9))
    for number in range(1, 5):
        observers.hear(events.Step(step=number, epoch=0.1, loss=2.5))
    observers.failed(FATAL, "")
    for text in (capsys.readouterr().out, where.training_log.read_text()):
        assert [
            number for number in range(1, 5) if f"step {number}/9" in text or f"step {number}  " in text
        ] == steps


@pytest.mark.parametrize(("level", "environ"), [("info", {}), ("info", {VERBOSE: "1"}), ("debug", {})])
def test_details_are_always_logged_and_printed_by_a_verbose_run(
    level: str, environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.from_json({"training": {"log_level": level, "report_to": []}})
    where, verbose = RunDir.at(tmp_path), bool(environ) or level == "debug"
    observers = Observers(where, 0, config, environ, Redactor())  # type: ignore[arg-type]
    observers.note(Diagnostic("x.early", "an early note", severity=Severity.NOTE))
    observers.note(Diagnostic("x.warned", "an early warning", severity=Severity.WARNING))
    observers.begin(events.RunStarted("0" * 64, 1, total_steps=9, description="sft with ddp"))
    observers.detail("rows      400 read")
    observers.failed(FATAL, "")
    printed, logged = capsys.readouterr().out, where.training_log.read_text()
    details = ("an early note", "sft with ddp", "rows      400 read")
    assert [text in printed for text in details] == [verbose] * 3 and all(text in logged for text in details)
    assert "an early warning" in printed, "what needs the user's eye is never a detail"
    assert [note.code for note in observers.early_notes] == ([] if verbose else ["x.early"])
