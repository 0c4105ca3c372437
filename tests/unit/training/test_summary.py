"""What the end of a run suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.rundir import RunDir
from paceline.training.reporting.console import print_summary


@pytest.mark.parametrize(("answers", "checkpoint"), [(True, "step-2"), (False, "step-2"), (True, "")])
def test_a_model_that_writes_no_text_is_not_to_be_chatted_with(
    answers: bool, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward model ends in scores; without a checkpoint there is nothing to go on with."""
    print_summary(RunDir.at(tmp_path), checkpoint, plot=False, answers=answers)
    said = capsys.readouterr().out
    assert ("paceline chat" in said) is (answers and bool(checkpoint))
    assert (f"paceline export {tmp_path} --to DIR" in said) is bool(checkpoint)
