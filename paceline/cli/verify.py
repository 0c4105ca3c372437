"""``paceline verify``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import codes
from paceline.cli.options import ConfigFile, Overrides, load
from paceline.cli.process import reach_package
from paceline.cli.report import print_diagnostics
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.private import written_for
from paceline.launch.spec import module_argv

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.verify.compared import ComparedRuns, VerifyReport
    from paceline.verify.sides import Side

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def verify(
    config: ConfigFile,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(help="Processes on this node [default: one a GPU, one on a CPU].")
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="The reference: single, ddp or fsdp [default: ddp, or single for one data-parallel rank]."
        ),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 5,
    probe: Annotated[bool, typer.Option(help="Also split one global batch as 8×1, 4×2 and 2×4.")] = True,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Keep the runs and verify.json there.")
    ] = None,
) -> None:
    """Check that the chosen strategy computes what a reference strategy computes.

    Trains a small version of the config's model for a few steps under both, and compares the results.
    """
    import tempfile

    loaded = load(config, overrides, {"launch.nproc": nproc} if nproc else {}, ruled=False)
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as scratch:
        folder = to.absolute() if to else Path(scratch)
        with written_for(folder):
            folder.mkdir(parents=True, exist_ok=True)
            code = _verify(loaded, folder, against, steps, probe, kept=to is not None)
        raise typer.Exit(code)


def _verify(loaded: Loaded, folder: Path, against: str, steps: int, probe: bool, *, kept: bool) -> int:
    from paceline.launch.before.planned import planned
    from paceline.plan.model.config_json import model_config
    from paceline.verify.sides import TOLERANCES, probes, reference_for, sides
    from paceline.verify.verdict import judge, judge_probe

    # Plan the given job, and derive both sides from it with a shrunken model
    plan, warnings = planned(loaded, needs_room=False)  # the full model need not fit
    print_diagnostics((*loaded.notes, *warnings))
    small = model_config(loaded.config.model, os.environ)
    requested, reference = sides(
        plan, small, steps=steps, against=against or reference_for(plan), folder=str(folder)
    )
    tolerance = TOLERANCES[plan.precision.compute]
    typer.echo(
        f"{plan.strategy} ({plan.mesh}) against {reference.name} on {reference.nproc} process(es): {steps}"
        f" steps in {plan.precision.compute}, {_size(requested.config)}"
    )
    # Train both, and compare their parameters
    _train(reference, folder)
    _train(requested, folder)
    verdict = judge(_compare(reference, requested, "param"), tolerance)
    typer.echo(verdict.text, nl=False)
    report: VerifyReport = {
        "strategy": plan.strategy,
        "against": reference.name,
        "precision": plan.precision.compute,
        "agrees": verdict.agrees,
        "rows": verdict.rows,
        "parted": verdict.parted,
    }
    agree = verdict.agrees
    # Train on one global batch under several splits, and compare the averaged gradients (Adam's exp_avg)
    if probe:
        splits = probes(requested, str(folder))
        for split in splits:
            _train(split, folder)
        probed = judge_probe(
            {split.name: _compare(splits[0], split, "exp_avg") for split in splits[1:]},
            tolerance,
            splits[0].name,
        )
        typer.echo(probed.text, nl=False)
        report["probe"] = probed.to_json()
        agree = agree and probed.agrees
    if kept:
        (folder / "verify.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        typer.echo(f"the runs and verify.json are in {folder}")
    return int(ExitCode.OK if agree else ExitCode.FAILED)


def _size(config: JsonObject) -> str:
    from paceline.plan.model.read_shape import shape_from_config

    shape = shape_from_config(as_object(as_object(config["model"])["config"]))
    return (
        f"{shape.model_type} of {shape.layers} layers, hidden {shape.hidden_size}, {shape.heads} heads,"
        " dropout 0"
    )


def _train(side: Side, folder: Path) -> None:
    """Run one side to its end with its output captured.

    Raises PacelineError with the end of its stderr on failure.
    """
    file = folder / f"{Path(side.output_dir).name}.yaml"
    file.write_text(json.dumps(side.config, indent=1), encoding="utf-8")
    done = _run("paceline.cli.main", "train", str(file), "--nproc", str(side.nproc))
    if done.returncode:
        raise PacelineError(
            codes.VERIFY_RUN_FAILED(
                f"the run under {side.name} ended with exit code {done.returncode}",
                str(file),
                "\n".join(done.stderr.strip().splitlines()[-12:]),
                "run paceline train with this file to see its complete output (--to DIR keeps it)",
            )
        )


def _compare(reference: Side, run: Side, kind: str) -> ComparedRuns:
    places = [side.output_dir for side in (reference, run)]
    done = _run("paceline.training.compare", *places, "--kind", kind)
    if done.returncode:
        raise PacelineError(
            codes.VERIFY_COMPARE_FAILED(
                "the two runs cannot be compared", places[1], done.stderr.strip()[-2000:]
            )
        )
    return json.loads(done.stdout)


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    reach_package()
    argv: Sequence[str] = module_argv(module, *arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False)
