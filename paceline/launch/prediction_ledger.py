"""This user's ledger of predicted and measured runs: where it is, adding a run, corrections from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.package import PACKAGE_VERSION
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch.calibrate_site import (
    card_of,
    coefficients_of,
    machine_name,
    measured_run,
    read_measured,
)
from paceline.plan.cost import measured_runs
from paceline.plan.cost.from_plan import predictions
from paceline.plan.explain import explain, overview
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import probe_hardware
from paceline.runlog.lines import is_verbose

if TYPE_CHECKING:
    from paceline.plan.hardware.probe import Hardware
    from paceline.plan.plan import Plan

#: Environment variable with the ledger's path, or ``off``.
VARIABLE = "PACELINE_LEDGER"


def ledger_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return ``$PACELINE_LEDGER``, else a file in the user's state folder; None when it is ``off``."""
    setting = environ.get(VARIABLE)
    if setting:
        return None if setting == "off" else Path(setting)
    home = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "paceline" / "ledger.jsonl"


def corrections_here(hardware: Hardware) -> tuple[tuple[float, float], str]:
    """Return ((memory factor, time factor), their source): this site's coefficients, else this machine's own
    runs; ((1, 1), "") without any.
    """
    site = coefficients_of(card_of(hardware))
    if site is not None:
        return (site.memory_factor, site.time_factor), site.source(PACKAGE_VERSION)
    path, machine = ledger_path(), machine_name(hardware)
    runs = [entry for entry in measured_runs.read(path) if entry.machine == machine] if path else []
    many = min(len(runs), measured_runs.NEWEST_RUNS)
    return measured_runs.corrections(runs, machine), f"{many} runs on this machine" if runs else ""


@dataclass(frozen=True)
class Expected:
    """The expected memory and speed of a plan on this machine.

    ``bytes``: of the fullest process; ``tokens_per_second``: over all ranks; ``runs``: the number of this
    machine's runs that corrected both.
    """

    bytes: float
    tokens_per_second: float
    runs: int


def expected(
    plan: Plan, environ: Mapping[str, str] = os.environ, *, uncorrected: bool = False
) -> Expected | None:
    """Return the prediction for this machine, corrected by its own runs.

    None if too little is known about the machine or the model. A CPU needs one earlier run; ``uncorrected``
    gives a figure without one.
    """
    path, on_cpu = ledger_path(environ), not is_accelerator(plan.device)
    hardware = probe_hardware(environ, use_cpu=on_cpu, num_nodes=plan.num_nodes)
    machine = machine_name(hardware)
    runs = [entry for entry in measured_runs.read(path) if entry.machine == machine] if path else []
    site = coefficients_of(card_of(hardware), environ)
    known = uncorrected or runs or site or not on_cpu
    predicted = predictions(plan, hardware) if known else None
    if predicted is None:
        return None
    memory, time = measured_runs.corrections(runs, machine)
    counted = min(len(runs), measured_runs.NEWEST_RUNS)
    if site is not None:
        memory, time, counted = site.memory_factor, site.time_factor, len(site.runs)
    return Expected(predicted[0] * memory, predicted[1] / time, counted)


def expected_here(plan: Plan) -> str:
    """Return a line with the expected memory and speed on this machine's CPU, corrected by its own runs.

    Empty without such runs or on a GPU.
    """
    numbers = None if is_accelerator(plan.device) else expected(plan)
    if numbers is None:
        return ""
    return (
        f"expected here: {numbers.bytes / measured_runs.GIB:.1f} GiB per process,"
        f" {numbers.tokens_per_second:,.0f} tokens/s (an estimate corrected by"
        f" {numbers.runs} runs: paceline plan --ledger)\n"
    )


def before_training(
    plan: Plan, environ: Mapping[str, str] = os.environ, findings: Iterable[Diagnostic] = ()
) -> str:
    """Return the text of a plan to print before its training: three lines, or all of it if verbose.

    ``findings``: of the checks before the start.
    """
    if is_verbose(environ):
        return explain(plan)
    numbers = expected(plan, environ)
    return overview(plan, numbers.bytes if numbers else None, findings)


def record(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Append a finished run to the ledger.

    Leaves the ledger unchanged when anything is missing or cannot be written: it never fails a run.
    """
    path = ledger_path(environ)
    if path is None:
        return
    try:
        # A run that ended as planned has compared itself
        ended = RunDir.at(plan.run_dir)
        run = read_measured(ended.root) if ended.measured_json.exists() else measured_run(plan, environ)
        with written_for(path.parent):
            measured_runs.append(path, run.entry)
    except (OSError, ValueError, PacelineError):
        return


def ledger_entry(as_json: bool) -> str:
    """Return the output of ``paceline plan --ledger``."""
    path = ledger_path()
    entries = measured_runs.read(path) if path else []
    if as_json:
        data = {"path": str(path) if path else None, "runs": measured_runs.to_json(entries)}
        return json.dumps(data, indent=2, ensure_ascii=False)
    end = f"kept in {path} ({VARIABLE}=off keeps none)" if path else f"{VARIABLE} is off"
    return f"{measured_runs.table(entries)}{end}\n"
