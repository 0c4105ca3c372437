"""Verbs that train: ``paceline train``, ``prepare``, ``verify``, ``sweep``, ``demo`` and ``bench``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import print_diagnostics
from paceline.cli.join import (
    as_torchrun_node,
    drives_a_node,
    join,
    on_its_node,
    refuse_many_processes,
    rehearsed,
)
from paceline.cli.options import PASSED_ON, PLAIN, AsJson, ConfigFile, LauncherOption, Overrides, group
from paceline.cli.process import become, call, call_on_data, words
from paceline.core.errors import ExitCode
from paceline.core.package import PACKAGE_VERSION
from paceline.core.plugins.tables import ALGORITHMS
from paceline.launch.preflight.load_config import load, load_to_start
from paceline.launch.process_spec import LaunchOptions
from paceline.launch.program import terminal
from paceline.runlog.lines import VERBOSE
from paceline.runlog.redact import printable

demo = typer.Typer(**PLAIN)
bench = group("Measure this machine.")


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc",
            "--nproc-per-node",
            "--nproc_per_node",
            help="Processes on this node [default: one per GPU, one on a CPU].",
        ),
    ] = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    node_rank: Annotated[
        int | None, typer.Option("--node-rank", "--node_rank", help="This node's number, from 0.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", "--master_addr", help="Address of node 0.")
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(
            "--master-port",
            "--master_port",
            help="A free port on node 0 [default: chosen when there is one node].",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(ALGORITHMS.names())}, or module:SPEC: overrides training.algorithm."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="latest, auto, or a checkpoint's path: resume from there.")
    ] = None,
    launcher: LauncherOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dry_run", help="Print the plan and the commands, start nothing.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="Print every decision with its reason, and every line of rank 0's log."
        ),
    ] = False,
    local_rank: Annotated[int | None, typer.Option("--local-rank", "--local_rank", hidden=True)] = None,
) -> None:
    """Train from one YAML.

    Refuses an invalid job before any process starts, and exits with the run's exit code.

    Inside srun, mpirun, torchrun, accelerate or deepspeed each process becomes one rank of the one run.
    """
    options = LaunchOptions(nproc, nnodes, node_rank, master_addr, master_port, algorithm, resume, launcher)
    options = as_torchrun_node(options)
    if not dry_run:
        if verbose:
            os.environ[VERBOSE] = "1"  # of the rank that this process may become
        join(config, overrides or [], options, local_rank)
    first_word(config)
    from paceline.cli.start import start  # a second of imports

    options = rehearsed(options) if dry_run else on_its_node(options)
    raise typer.Exit(start(config, overrides or [], options, dry_run=dry_run, verbose=verbose))


def first_word(config: Path) -> None:
    """Print on a terminal that a run begins, since imports and checks take a moment; print nothing into a
    log."""
    stream = terminal(sys.stderr)
    if stream.isatty():
        print(f"paceline {PACKAGE_VERSION}: {printable(str(config))} is read and checked ...", file=stream)
        stream.flush()


def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Where the prepared data are kept [default: data.cache_dir, $PACELINE_CACHE,"
                " ~/.cache/paceline]."
            )
        ),
    ] = None,
) -> None:
    """Tokenise and store the data ahead of training.

    Later trainings with the same data, tokenizer, template and length then start at once.
    """
    raise typer.Exit(prepare_data(config, overrides or [], cache))


def prepare_data(config: Path, overrides: Sequence[str], cache: Path | None = None) -> int:
    """Prepare the data that ``config`` describes and return the exit code."""
    loaded = load(config, overrides)
    print_diagnostics(loaded.notes)
    return call_on_data("paceline.data.prepare.main", loaded, cache)


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
    from paceline.api.verifying import VerifyOptions, verified

    loaded = load(config, overrides, {"launch.nproc": nproc} if nproc else {}, ruled=False)
    report = verified(
        loaded,
        VerifyOptions(against, steps, probe),
        to=to,
        report=partial(typer.echo, nl=False),
        warn=print_diagnostics,
    )
    raise typer.Exit(int(ExitCode.OK if report["agrees"] else ExitCode.FAILED))


def rehearse(
    config: ConfigFile,
    overrides: Overrides = None,
    nproc: Annotated[int | None, typer.Option(help="Processes on this node [default: as in train].")] = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    node_rank: Annotated[int | None, typer.Option("--node-rank", help="This node's number, from 0.")] = None,
    master_addr: Annotated[str | None, typer.Option("--master-addr", help="Address of node 0.")] = None,
    master_port: Annotated[int | None, typer.Option("--master-port", help="A free port on node 0.")] = None,
    launcher: LauncherOption = None,
    steps: Annotated[
        int, typer.Option(min=4, help="Optimizer steps of the first start; half of them before its save.")
    ] = 8,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time of each start, after which it is ended.")
    ] = 1800.0,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Keep the runs there [default: beside the run, removed]."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Live a run's life in minutes, on the real ranks: start, steps, evaluation, save, kill, resume, stop,
    another world size, export.

    Prints a verdict for each, and what follows for the whole run. Writes nothing into the run directory.
    """
    options = LaunchOptions(nproc, nnodes, node_rank, master_addr, master_port, launcher=launcher)
    options = as_torchrun_node(options)
    if not drives_a_node(options):
        refuse_many_processes("paceline rehearse")
    from paceline.rehearsal.rehearse import rehearse as rehearsal_of

    options = on_its_node(options)
    rehearsal = rehearsal_of(
        load_to_start(config, overrides, options.flags()),
        str(config),
        overrides or [],
        options,
        steps=steps,
        limit=limit,
        to=to,
        report=lambda text: typer.echo(f"rehearse: {text}", err=True),
        warn=print_diagnostics,
    )
    typer.echo(json.dumps(rehearsal.to_json(), indent=1) if as_json else rehearsal.text(), nl=as_json)
    raise typer.Exit(int(ExitCode.FAILED if rehearsal.failed else ExitCode.OK))


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.")],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=A,B,C...", help="Values to try, one run each; several keys: every combination."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Folder of the runs [default: outputs/NAME-sweep]."),
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes of each run, as in train.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print which runs there would be.")] = False,
) -> None:
    """Train once for each value of a key, one run at a time, and compare the runs.

    All configs are checked before the first run. The same command continues a sweep: complete runs are not
    repeated, stopped ones are resumed. Write a value that contains commas in brackets, as a list.
    """
    from paceline.api.several_runs import facts_below, planned_runs, table

    folder = to or Path("outputs") / f"{config.stem}-sweep"
    wanted = planned_runs(config, settings, folder)
    for run in wanted:
        typer.echo(f"{run.name:<40} {run.todo}", err=True)
    if dry_run:
        return
    failed = 0
    for run in wanted:
        if run.todo == "done":
            continue
        typer.echo(f"\nsweep: {run.name}", err=True)
        code = call("paceline.cli.main", "train", str(config), *run.settings, *words(nproc=nproc))
        if code in (ExitCode.STOPPED, ExitCode.INTERRUPTED):
            raise typer.Exit(code)
        failed += code != ExitCode.OK
    typer.echo(f"\n{table(facts_below(folder))}")
    paths = [str(run.path) for run in wanted if (run.path / "plan.json").is_file()]
    call("paceline.watch.summary_plots", "runs", str(folder / "sweep.png"), *paths)
    raise typer.Exit(int(ExitCode.FAILED if failed else ExitCode.OK))


@demo.command("demo", context_settings=PASSED_ON)
def _demo(context: typer.Context) -> None:
    """Train a small model from scratch on two processes and show what it learnt."""
    become("paceline.demo.main", *context.args)


@bench.command(context_settings=PASSED_ON)
def scaling(context: typer.Context) -> None:
    """Measure throughput, memory and efficiency on 1, 2, … processes of this machine."""
    become("paceline.demo.scaling", *context.args)
