"""A run directory, and a way to save into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import FILES, OneRank, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.core.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


@pytest.fixture
def save(run: RunDir) -> Callable[..., Path]:
    def one(step: int, keep: int | None = None, **kwargs: Any) -> Path:
        return Checkpointer(run, OneRank(), keep, **kwargs).save(
            step, sample_shards(step), {"train": {"step": step}}, FILES
        )

    return one
