"""``paceline train``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import ConfigFile, LauncherOption, Overrides
from paceline.core.plugins.tables import ALGORITHMS
from paceline.core.version import PACKAGE_VERSION
from paceline.launch.redacted_output import terminal
from paceline.runlog.redact import printable

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
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
    local_rank: Annotated[int | None, typer.Option("--local-rank", "--local_rank", hidden=True)] = None,
) -> None:
    """Train from one YAML.

    Refuses an invalid job before any process starts, prints the plan, and exits with the run's exit code.

    Inside srun, mpirun, torchrun, accelerate or deepspeed each process becomes one rank of the one run.
    """
    from paceline.cli.training.joined import join, on_its_node, rehearsed
    from paceline.launch.launch_options import LaunchOptions

    options = LaunchOptions(nproc, nnodes, node_rank, master_addr, master_port, algorithm, resume, launcher)
    if not dry_run:
        join(config, overrides or [], options, local_rank)
    first_word(config)
    from paceline.cli.training.start import start  # a second of imports

    options = rehearsed(options) if dry_run else on_its_node(options)
    raise typer.Exit(start(config, overrides or [], options, dry_run=dry_run))


def first_word(config: Path) -> None:
    """Say on a terminal what begins, before the imports and checks that take a moment; a log has no need."""
    stream = terminal(sys.stderr)
    if stream.isatty():
        print(f"paceline {PACKAGE_VERSION}: {printable(str(config))} is read and checked ...", file=stream)
        stream.flush()
