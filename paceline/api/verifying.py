"""``paceline.verify`` and the verb: a small version of the model under the strategy and under a reference."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.api.arguments import ConfigLike, Overrides, read, source_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.security.file_permissions import written_for
from paceline.launch.process_spec import import_path, module_argv

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.verify.sides import Tolerance, VerifiedRun
    from paceline.verify.verdict import ComparedRuns, VerifyReport

Report = Callable[[str], None]
Warn = Callable[[Iterable[Diagnostic]], None]


@dataclass(frozen=True)
class VerifyOptions:
    """``against``: single, ddp or fsdp, empty for the strategy's own; ``steps`` of each run; ``probe``: also
    split one global batch in several ways.
    """

    against: str = ""
    steps: int = 5
    probe: bool = True


def verify(
    config: ConfigLike,
    *,
    overrides: Overrides | None = None,
    nproc: int | None = None,
    against: str = "",
    steps: int = 5,
    probe: bool = True,
    to: str | PathLike[str] | None = None,
) -> VerifyReport:
    """Train a small version of the model under the chosen strategy and under a reference, and compare them.

    ``against``: single, ddp or fsdp; ``probe``: also split one global batch in several ways; ``to``: keep the
    runs and ``verify.json`` there. Returns the content of ``verify.json``: ``agrees``, and the differences of
    each step. Raises ConfigError, and PacelineError if a run fails.
    """
    source = source_of(config, overrides).with_overrides({"launch.nproc": nproc})
    kept = None if to is None else Path(to)
    return verified(read(source, ruled=False), VerifyOptions(against, steps, probe), to=kept)


def verified(
    loaded: Loaded,
    options: VerifyOptions,
    *,
    to: Path | None,
    report: Report = lambda text: None,
    warn: Warn = lambda found: None,
) -> VerifyReport:
    """Verify a loaded config; ``report`` gets the results as text, ``warn`` the findings."""
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as scratch:
        folder = to.absolute() if to else Path(scratch)
        with written_for(folder):
            folder.mkdir(parents=True, exist_ok=True)
            verdict = _verified(loaded, folder, options, report, warn)
            if to is not None:
                (folder / "verify.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
                report(f"the runs and verify.json are in {folder}\n")
    return verdict


def _verified(
    loaded: Loaded, folder: Path, options: VerifyOptions, report: Report, warn: Warn
) -> VerifyReport:
    from paceline.launch.preflight.plan_job import planned
    from paceline.plan.model.read_config import model_config
    from paceline.verify.sides import TOLERANCES, gradient_checks, reference_for, runs_to_compare
    from paceline.verify.verdict import judge

    # Plan the given job, and derive both sides from it with a shrunken model
    plan, warnings = planned(loaded, needs_room=False)  # the full model need not fit
    warn((*loaded.notes, *warnings))
    small = model_config(loaded.config.model, os.environ)
    requested, reference = runs_to_compare(
        plan,
        small,
        steps=options.steps,
        against=options.against or reference_for(plan),
        folder=str(folder),
    )
    tolerance = TOLERANCES[plan.precision.compute]
    report(
        f"{plan.strategy} ({plan.mesh}) against {reference.name} on {reference.nproc} process(es):"
        f" {options.steps} steps in {plan.precision.compute}, {_size(requested.config)}\n"
    )
    if plan.strategy == reference.name:
        report("the strategy is its own reference: equal runs show only that they repeat\n")
    # Train both, and compare their parameters
    _train(reference, folder)
    _train(requested, folder)
    verdict = judge(_compare(reference, requested, "param"), tolerance)
    report(verdict.text)
    outcome: VerifyReport = {
        "strategy": plan.strategy,
        "against": reference.name,
        "precision": plan.precision.compute,
        "agrees": verdict.agrees,
        "rows": verdict.rows,
        "parted": verdict.parted,
    }
    if options.probe:
        _probe(outcome, gradient_checks(requested, str(folder)), folder, tolerance, report)
    return outcome


def _probe(
    outcome: VerifyReport, splits: Sequence[VerifiedRun], folder: Path, tolerance: Tolerance, report: Report
) -> None:
    """Train on one global batch under several splits, and compare the averaged gradients (Adam's exp_avg)."""
    from paceline.verify.verdict import judge_probe

    for split in splits:
        _train(split, folder)
    compared = {split.name: _compare(splits[0], split, "exp_avg") for split in splits[1:]}
    probed = judge_probe(compared, tolerance, splits[0].name)
    report(probed.text)
    outcome["probe"] = probed.to_json()
    outcome["agrees"] = outcome["agrees"] and probed.agrees


def _size(config: JsonObject) -> str:
    from paceline.plan.model.read_config import shape_from_config

    shape = shape_from_config(as_object(as_object(config["model"])["config"]))
    return (
        f"{shape.model_type} of {shape.layers} layers, hidden {shape.hidden_size}, {shape.heads} heads,"
        " dropout 0"
    )


def _train(side: VerifiedRun, folder: Path) -> None:
    """Run one side to its end with its output captured.

    Raises PacelineError with the end of its stderr on failure.
    """
    file = folder / f"{Path(side.output_dir).name}.yaml"
    file.write_text(json.dumps(side.config, indent=1), encoding="utf-8")
    done = _run("paceline.cli.main", "train", str(file), "--nproc", str(side.nproc))
    if done.returncode:
        raise PacelineError(
            codes.VERIFY_RUN_FAILED(
                str(file),
                "\n".join(done.stderr.strip().splitlines()[-12:]),
                name=side.name,
                returncode=done.returncode,
            )
        )


def _compare(reference: VerifiedRun, run: VerifiedRun, kind: str) -> ComparedRuns:
    places = [side.output_dir for side in (reference, run)]
    done = _run("paceline.evaluation.compare_runs", *places, "--kind", kind)
    if done.returncode:
        raise PacelineError(codes.VERIFY_COMPARE_FAILED(places[1], done.stderr.strip()[-2000:]))
    return json.loads(done.stdout)


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv, environ = module_argv(module, *arguments), {**os.environ, **import_path(os.environ)}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
