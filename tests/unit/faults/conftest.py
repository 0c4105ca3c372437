"""A sound job of a few files, that faults are made in."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_jobs import Job

from paceline.plan.hardware import probe


@pytest.fixture
def job(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_LEDGER", "off")
    monkeypatch.chdir(tmp_path)
    # Whatever the processor: some have float16 products, of which a plan is told.
    monkeypatch.setattr(probe, "cpu_flags", lambda text=None: (frozenset({"avx2", "f16c"}), "A CPU"))
    return Job(tmp_path, tokenizer_dir)
