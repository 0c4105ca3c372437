"""This site's own coefficients: where they lie, what a finished run measured, and runs taken into them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import as_object
from paceline.core.package import PACKAGE_VERSION
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch import codes
from paceline.plan.cost import site_coefficients
from paceline.plan.cost.from_plan import predictions
from paceline.plan.cost.measured_runs import LedgerEntry
from paceline.plan.cost.site_coefficients import MeasuredRun, SiteCoefficients
from paceline.plan.hardware.device_catalogue import card_named
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.plan import Plan
from paceline.plan.plan_json import from_json
from paceline.runlog.history import load_history

if TYPE_CHECKING:
    from paceline.plan.hardware.probe import Hardware

#: Environment variable with the file's path, or ``off``.
VARIABLE = "PACELINE_CALIBRATION"


def calibration_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return ``$PACELINE_CALIBRATION``, else a file in the user's state folder; None when it is ``off``."""
    setting = environ.get(VARIABLE)
    if setting:
        return None if setting == "off" else Path(setting)
    home = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "paceline" / "calibration.json"


def coefficients_of(card: str, environ: Mapping[str, str] = os.environ) -> SiteCoefficients | None:
    """Return this site's coefficients for a card; None without any. Raises ConfigError for a broken file."""
    path = calibration_path(environ)
    return site_coefficients.read(path).get(card) if path else None


def card_of(hardware: Hardware) -> str:
    """Return the catalogue's name of this machine's cards, else the device's own."""
    if not is_accelerator(hardware.device):
        return hardware.device_name
    try:
        return card_named(hardware.device_name).name
    except ConfigError:  # not in the catalogue: its own name is as good a key
        return hardware.device_name


def machine_name(hardware: Hardware) -> str:
    """Return the number of devices per node and their name; runs are compared by this key."""
    count = hardware.num_devices if is_accelerator(hardware.device) else hardware.cpu_count
    return f"{count} × {hardware.device_name}"


def measured_run(plan: Plan, environ: Mapping[str, str] = os.environ) -> MeasuredRun:
    """Return what the events of a run on this machine measured, beside its plan."""
    # The median speed after the first fifth of the steps
    history = load_history(RunDir.at(plan.run_dir))
    settled = list(history.steps.values())[max(1, len(history.steps) // 5) :]
    speeds = [step.tokens_per_second for step in settled if step.tokens_per_second > 0]
    hardware = probe_hardware(environ, use_cpu=plan.device == "cpu", num_nodes=plan.num_nodes)
    predicted_bytes, predicted_speed = predictions(plan, hardware) or (None, None)
    entry = LedgerEntry(
        time=datetime.now().isoformat(timespec="seconds"),
        machine=machine_name(hardware),
        model=str(plan.config.model.name_or_path or "from scratch"),
        strategy=plan.strategy,
        ranks=plan.world_size,
        predicted_bytes=predicted_bytes,
        measured_bytes=max(history.peak_memory.values(), default=None),
        predicted_speed=predicted_speed,
        measured_speed=statistics.median(speeds) if speeds else None,
        run=plan.run_dir,
    )
    return MeasuredRun(entry, card_of(hardware), PACKAGE_VERSION, _torch())


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:  # a machine that only plans
        return ""


def write_measured(plan: Plan, environ: Mapping[str, str]) -> MeasuredRun:
    """Write ``measured.json`` of a run that has ended on this machine, and return it. Raises OSError."""
    run = measured_run(plan, environ)
    text = json.dumps(asdict(run), indent=1, ensure_ascii=False)
    RunDir.at(plan.run_dir).measured_json.write_text(text + "\n", encoding="utf-8")
    return run


def read_measured(folder: Path, environ: Mapping[str, str] = os.environ) -> MeasuredRun:
    """Return what a finished run measured: from its ``measured.json``, else from plan and events.

    A run without the file counts as one of this machine. Raises ConfigError.
    """
    run = RunDir.at(folder)
    try:
        if run.measured_json.exists():
            return from_json(MeasuredRun, as_object(json.loads(read_text(run.measured_json))))
        plan = Plan.from_json(as_object(json.loads(read_text(run.plan_json))))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(codes.PLAN_CALIBRATION_RUN(str(folder), str(error))) from error
    if (outcome := load_history(RunDir.at(plan.run_dir)).outcome) == "failed":
        raise ConfigError(codes.PLAN_CALIBRATION_RUN(str(folder), f"the run has {outcome}"))
    return measured_run(plan, environ)


def calibrate(folders: Sequence[Path], environ: Mapping[str, str] = os.environ) -> str:
    """Take finished runs into this site's coefficients; return them as text. Raises ConfigError."""
    path = calibration_path(environ)
    if path is None:
        raise ConfigError(codes.PLAN_CALIBRATION_OFF(VARIABLE, "off"))
    if not folders:
        raise ConfigError(codes.PLAN_CALIBRATION_RUN("--calibrate", "no run"))
    runs = [read_measured(folder, environ) for folder in folders]
    useless = [run for run in runs if run.entry.memory_ratio is None and run.entry.speed_ratio is None]
    if useless:
        raise ConfigError(
            *[
                codes.PLAN_CALIBRATION_RUN(run.entry.run, run.beside() or "no finished step")
                for run in useless
            ]
        )
    coefficients = site_coefficients.with_runs(
        site_coefficients.read(path), runs, datetime.now().date().isoformat()
    )
    with written_for(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.new")
        staged.write_text(site_coefficients.dumps(coefficients), encoding="utf-8")
        staged.replace(path)
    cards = dict.fromkeys(run.card for run in runs)
    return f"{site_coefficients.table([coefficients[card] for card in cards])}written to {path}\n"
