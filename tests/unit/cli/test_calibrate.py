"""``paceline plan --calibrate``: a site's own finished runs correct its later plans, and are named there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch.prediction_ledger import expected
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.cost.measured_runs import LedgerEntry
from paceline.plan.cost.site_coefficients import MeasuredRun, SiteCoefficients, read
from paceline.plan.plan import Plan
from paceline.runlog.events import Error, EventLog, Step

RUN = CliRunner()
H100 = LedgerEntry("2026-11-30T10:00:00", "8 × H100", "llama-3-8b", "fsdp", 8, 40e9, 44e9, 1000.0, 800.0)


def asked(*arguments: str) -> str:
    result = RUN.invoke(application_of("plan"), list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(autouse=True)
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "calibration.json"
    monkeypatch.setenv("PACELINE_CALIBRATION", str(path))
    monkeypatch.setenv("PACELINE_LEDGER", "off")
    return path


def run_on_h100(folder: Path, memory: float, speed: float) -> str:
    """A run directory as a finished run on H100 leaves it."""
    folder.mkdir()
    entry = replace(H100, run=str(folder), measured_bytes=memory * 40e9, measured_speed=speed * 1000.0)
    text = json.dumps(asdict(MeasuredRun(entry, "H100-SXM-80GB", "1.0", "2.13")))
    RunDir.at(folder).measured_json.write_text(text)
    return str(folder)


def finished(plan: Plan, speed: float) -> None:
    with EventLog(RunDir.at(plan.run_dir).events(0), 0) as log:
        for step in range(1, 11):
            log.write(Step(step=step, epoch=0.0, loss=1.0, tokens_per_second=speed, memory_bytes=800_000_000))
    RunDir.at(plan.run_dir).plan_json.write_text(plan.dumps())


def test_runs_elsewhere_correct_plans_for_their_card_and_no_other(tmp_path: Path) -> None:
    question = ("--model", "llama-3-8b", "--hardware", "8xH100", "--json")
    before = json.loads(asked(*question))
    told = asked("--calibrate", *(run_on_h100(tmp_path / n, 1.2, 0.8) for n in "abc"))
    assert "3 run(s)" in told and max(map(len, told.splitlines())) <= 110
    after = json.loads(asked(*question))
    rows = {row["strategy"]: row for row in before["strategies"]}
    memory, time = after["corrections"]["memory"], after["corrections"]["time"]
    assert 1.1 < memory < 1.2 and 1.1 < time < 1.25, "three runs outvote the prior, but not wholly"
    assert (
        "H100-SXM-80GB" in after["corrections"]["source"] and "3 calibrated" in after["corrections"]["source"]
    )
    for row in after["strategies"]:
        same = rows[row["strategy"]]
        if (row["mesh"], row["micro_batch"], row["recompute"]) == (
            *(same["mesh"], same["micro_batch"], same["recompute"]),
        ):
            assert row["memory_bytes"] == pytest.approx(memory * same["memory_bytes"], rel=1e-3)
    assert (
        json.loads(asked("--model", "llama-3-8b", "--hardware", "8xA100", "--json"))["corrections"]["source"]
        == ""
    )
    assert "measured: 3 calibrated" in asked(*question[:-1])


def test_a_run_of_this_machine_is_measured_beside_its_plan(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, calibration: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(tiny(use_cpu=True)))
    plan, _ = planned(load(config, None))
    uncorrected = expected(plan, uncorrected=True)
    assert uncorrected is not None
    finished(plan, uncorrected.tokens_per_second / 3)
    asked("--calibrate", plan.run_dir)
    (site,) = read(calibration).values()
    (run,) = site.runs
    assert run.entry.run == plan.run_dir and run.entry.measured_bytes == 800_000_000 and run.torch
    assert "tokens/s for" in run.beside() and "-67%" in run.beside()
    corrected = expected(plan)
    assert corrected is not None and corrected.runs == 1
    assert corrected.tokens_per_second < 0.75 * uncorrected.tokens_per_second
    asked("--calibrate", plan.run_dir)
    assert len(read(calibration)[site.card].runs) == 1, "the same run counts once"
    with EventLog(RunDir.at(plan.run_dir).events(0), 0) as log:
        log.write(Error(0, Diagnostic("training.nonfinite", "the loss is not a number")))
    with pytest.raises(ConfigError) as caught:
        asked("--calibrate", plan.run_dir)
    assert caught.value.diagnostics[0].found == "the run has failed"


def test_many_runs_outvote_the_plan_and_one_only_partly() -> None:
    run = MeasuredRun(replace(H100, measured_bytes=60e9), "H100-SXM-80GB", "1.0", "2.13")
    one = SiteCoefficients.of("H100-SXM-80GB", [run], "2026-11-30")
    many = SiteCoefficients.of("H100-SXM-80GB", [run] * 50, "2026-11-30")
    assert 1.25 < one.memory_factor < 1.35 and many.memory_factor == pytest.approx(1.5, rel=0.01)


def test_what_cannot_calibrate_is_a_diagnostic(tmp_path: Path, calibration: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        asked("--calibrate", str(tmp_path / "nothing"))
    assert caught.value.diagnostics[0].code == "plan.calibration_run"
    with pytest.raises(ConfigError) as caught:
        asked("--calibrate")  # as from a pattern of the shell that names nothing
    assert caught.value.diagnostics[0].found == "no run" and not calibration.exists()
    calibration.parent.mkdir()
    calibration.write_text("{}")
    with pytest.raises(ConfigError) as caught:
        asked("--model", "llama-3-8b", "--hardware", "8xH100")
    assert caught.value.diagnostics[0].code == "plan.calibration_file"
