"""Whoever reads a checkpoint that training prunes meanwhile names it; no OSError ends the reader."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vanishing import deleted_at_every_call

from paceline.checkpoint import errors
from paceline.checkpoint import main as verbs
from paceline.checkpoint.commands import verify
from paceline.checkpoint.commands.diff import compare
from paceline.checkpoint.commands.prune import prune_run
from paceline.checkpoint.format import verify_files
from paceline.checkpoint.load import find_checkpoint
from paceline.checkpoint.load.find_checkpoint import as_table, list_checkpoints
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.main import main
from paceline.checkpoint.save.retention import RetentionRule, last_verified
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

WHOLE = Path(__file__).with_name("version_2")


def step(run: Path) -> Path:
    return RunDir.at(run).checkpoint(2)


def both(run: Path) -> None:
    with (
        CheckpointReader(step(run)) as first,
        CheckpointReader(step(run)) as second,
    ):
        compare(first, second)


READERS: dict[str, Callable[[Path], Any]] = {
    "scan": lambda run: (
        verify_files.scan(run / "checkpoints"),
        verify_files.leftovers(run / "checkpoints"),
    ),
    "list": lambda run: as_table(list_checkpoints(run / "checkpoints")),
    "examine": lambda run: verify.examine(step(run)),
    "compare": both,
    "resume": lambda run: find_checkpoint.find_checkpoint("latest", RunDir.at(run)),
    "last verified": lambda run: last_verified(run / "checkpoints"),
    "main verify": lambda run: main(["verify", str(run)]),
    "thin": lambda run: prune_run(run / "checkpoints", RetentionRule(1, None), dry=False),
}


def test_a_checkpoint_pruned_meanwhile_is_not_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(WHOLE, tmp_path / "run")
    folder = RunDir.at(tmp_path / "run").checkpoints
    shutil.copytree(folder / "step-00000002", folder / "step-00000001")
    of_both = verify.examine

    def pruned_first(path: Path) -> verify.CheckpointReport:
        shutil.rmtree(folder / "step-00000001", ignore_errors=True)
        return of_both(path)

    monkeypatch.setattr(verify, "examine", pruned_first)
    main(["verify", str(tmp_path / "run"), "--json"])
    told = capsys.readouterr()
    assert told.err == "step-00000001: removed meanwhile\n"
    assert "step-00000002" in told.out and "step-00000001" not in told.out
    assert main(["verify", str(folder / "step-00000001")]) == 1


@pytest.mark.parametrize("which", ["all", "step-00000002"])
def test_what_was_asked_for_and_is_gone_was_not_verified(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(WHOLE, tmp_path / "run")
    folder = RunDir.at(tmp_path / "run").checkpoints
    shutil.copytree(folder / "step-00000002", folder / "step-00000001")

    def gone(path: Path) -> Any:
        for one in folder.glob("step-*"):
            shutil.rmtree(one)
        raise CheckpointError(errors.incomplete(path, "manifest.json is missing").diagnostics[0])

    monkeypatch.setattr(verbs, "being_read", gone)
    assert main(["verify", str(tmp_path / "run"), "--checkpoint", which]) != 0
    assert ("removed meanwhile" in capsys.readouterr().err) == (which == "all")


@pytest.mark.parametrize("mode", ["the folder", "the path"])
@pytest.mark.parametrize("name", READERS)
def test_at_every_call(name: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deleted_at_every_call(READERS[name], WHOLE, tmp_path / "here", mode)
