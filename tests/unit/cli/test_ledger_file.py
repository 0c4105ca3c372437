"""Where the ledger lies and what a finished run adds to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.core.rundir import RunDir
from paceline.launch.calibrate_site import machine_name
from paceline.launch.prediction_ledger import expected_here, ledger_path, record
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.cost.from_plan import predictions
from paceline.plan.cost.measured_runs import LedgerEntry, append, read
from paceline.plan.hardware.probe import probe_hardware
from paceline.runlog.events import EventLog, Step


def test_the_path_follows_the_environment() -> None:
    assert ledger_path({"PACELINE_LEDGER": "off"}) is None
    assert ledger_path({"PACELINE_LEDGER": "/x/y.jsonl"}) == Path("/x/y.jsonl")
    assert ledger_path({"XDG_STATE_HOME": "/s"}) == Path("/s/paceline/ledger.jsonl")


def test_a_finished_run_adds_what_was_predicted_and_what_was_measured(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(tiny(use_cpu=True)))
    plan, _ = planned(load(config, None))
    run = RunDir.at(plan.run_dir)
    with EventLog(run.events(0), 0) as log:
        for step in range(1, 11):
            log.write(
                Step(
                    step=step,
                    epoch=0.0,
                    loss=1.0,
                    tokens_per_second=1.0 if step == 1 else 500.0,
                    memory_bytes=700_000_000 + step,
                )
            )
    record(plan, {"PACELINE_LEDGER": str(tmp_path / "ledger.jsonl")})
    (entry,) = read(tmp_path / "ledger.jsonl")
    assert (entry.measured_bytes, entry.measured_speed, entry.strategy) == (700_000_010, 500.0, plan.strategy)
    assert entry.predicted_bytes and entry.predicted_speed and 0.2 < (entry.memory_ratio or 0) < 5
    record(plan, {"PACELINE_LEDGER": "off"})
    assert len(json.loads("[" + ",".join((tmp_path / "ledger.jsonl").read_text().splitlines()) + "]")) == 1


def test_a_later_plan_on_this_cpu_says_what_its_runs_have_taught(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(tiny(use_cpu=True)))
    plan, _ = planned(load(config, None))
    monkeypatch.setenv("PACELINE_LEDGER", str(tmp_path / "ledger.jsonl"))
    assert expected_here(plan) == ""
    hardware = probe_hardware({}, use_cpu=True)
    expected = predictions(plan, hardware)
    assert expected is not None
    append(
        tmp_path / "ledger.jsonl",
        LedgerEntry(
            "2026-01-01T00:00:00",
            machine_name(hardware),
            "m",
            "single",
            1,
            expected[0],
            1.5 * expected[0],
            expected[1],
            0.8 * expected[1],
        ),
    )
    told = expected_here(plan)
    assert (
        f"{1.5 * expected[0] / 2**30:.1f} GiB" in told
        and f"{0.8 * expected[1]:,.0f} tokens/s" in told
        and "by 1 runs" in told
    )
