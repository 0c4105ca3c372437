"""What a checkpoint's state tells is found by ``plan``: another strategy, read or not, and data of an earlier definition."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job

from paceline.config.schema import Config
from paceline.launch.before import beforehand
from paceline.plan.plan import Plan
from paceline.training import look as looking


@pytest.mark.parametrize(
    ("strategy", "code", "severity"),
    [("zero2", "resume.other_strategy", "note"), ("mine:Class", "checkpoint.other_strategy", "error")],
)
def test_another_strategys_checkpoint(
    strategy: str, code: str, severity: str, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(wanted: dict[str, Any]) -> tuple[dict[str, Any], str]:
        found = looking.look(Config.from_json(wanted["config"]), os.environ, Plan.from_json(wanted["plan"]))
        return {"looked": [d.to_json() for d in found]}, ""

    monkeypatch.setattr(beforehand, "_asked", asked)
    monkeypatch.setattr(looking, "find_checkpoint", lambda *_, **__: tmp_path)
    monkeypatch.setattr(looking, "read_state", lambda _: {"strategy": strategy, "data_fingerprint": "of 3b6e39d"})
    monkeypatch.setattr(looking, "same_run", lambda *_: None)  # the rest of the state is as this run's
    found = job.found({"training.resume_from_checkpoint": str(tmp_path)})
    assert found[code].severity.value == severity and strategy in found[code].found
    if severity == "note":  # a refusal is told alone
        assert found["resume.data_not_compared"].severity.value == "warning"
