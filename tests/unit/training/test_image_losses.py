"""Rows with pictures give TRL's losses: its ``SFTTrainer`` was asked by ``tests/peers/image_losses.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT, Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

sys.path.insert(0, str(ROOT / "tests/peers"))
from image_losses import FAMILIES, RECORDED, ours, write_inputs


@pytest.mark.parametrize(
    "kind", [kind if kind == "gemma3" else pytest.param(kind, marks=pytest.mark.full) for kind in FAMILIES]
)
def test_rows_with_pictures_give_the_losses_of_trl(
    kind: str, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    write_inputs(tmp_path, kind)
    done = paceline("train", str(write_yaml(tmp_path / "run.yaml", ours(tmp_path, kind))))
    assert done.code == 0, done.err
    records = read_events(RunDir.at(tmp_path / "run").events(0))
    losses = [record.event.loss for record in records if isinstance(record.event, Step)]
    assert losses == pytest.approx(json.loads(RECORDED.read_text())[kind], abs=1e-5)
