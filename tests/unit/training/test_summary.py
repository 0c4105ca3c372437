"""What the end of a run suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.rundir import RunDir
from paceline.runlog.lines import next_commands, short_path
from paceline.training.reporting.console import print_summary


def labels(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("resume", "saved", "answers", "first_words"),
    [
        ("", True, True, ["chat", "export", "watch"]),
        ("", True, False, ["export", "watch", "report"]),
        ("", False, True, ["watch", "report"]),
        ("paceline train c.yaml --resume latest", True, True, ["resume", "chat", "export"]),
        ("paceline train c.yaml --resume latest", False, False, ["resume", "watch", "report"]),
    ],
)
def test_at_most_three_commands_and_the_one_that_resumes_first(
    resume: str, saved: bool, answers: bool, first_words: list[str]
) -> None:
    """A reward model ends in scores, so one cannot chat with it; without a checkpoint nothing is exported."""
    assert labels(next_commands("/a run", resume=resume, saved=saved, answers=answers)) == first_words


def test_folders_are_quoted_and_relative_inside_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "paceline chat 'outputs/my run'\n" in next_commands(tmp_path / "outputs/my run")
    assert short_path(tmp_path) == str(tmp_path) and short_path("/elsewhere/run") == "/elsewhere/run"


@pytest.mark.parametrize(
    ("verbose", "shown"), [(False, ["checkpoint", "chat"]), (True, ["run", "checkpoint"])]
)
def test_the_summary_is_short_unless_more_is_wanted(
    verbose: bool, shown: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(RunDir.at(tmp_path), "step-2", plot=False, commands="chat  x", verbose=verbose)
    printed = capsys.readouterr().out
    assert labels(printed)[:2] == shown
    assert ("plot" in labels(printed)) is verbose
