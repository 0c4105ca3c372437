"""Verbs of jobs on a cluster: ``paceline launch``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.options import Overrides
from paceline.core.errors import ConfigError
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.process_spec import import_path
from paceline.schedulers.table import SCHEDULERS

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="SCHEDULER",
        help="Where to run: slurm, kubernetes, ray, skypilot, dstack, mpi, ssh or local.",
    ),
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", "--nnodes", min=1, help="Nodes [default: launch.nnodes].")
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=0, help="Accelerators of a node; 0: a run on CPUs.")
]
Nproc = Annotated[
    int | None, typer.Option("--nproc", min=1, help="Ranks of a node [default: one per accelerator].")
]
Time = Annotated[
    str | None, typer.Option("--time", metavar="12h", help="Time to request [default: from the plan].")
]


def launch(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.")],
    overrides: Overrides = None,
    on: On = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    nproc: Nproc = None,
    time: Time = None,
    submit: Annotated[bool, typer.Option("--submit", help="Also hand the job to the scheduler.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the files [default: RUN-launch].")
    ] = None,
) -> None:
    """Write the job of a scheduler from one YAML, and print the command that starts it.

    The config is checked as train checks it, as far as this machine can know. The keys of launch: hold what
    the site wants: partition, account, image, mounts, variables, modules.
    """
    from paceline.schedulers.check_job import JobRequest, checked_job
    from paceline.schedulers.table import scheduler_named
    from paceline.schedulers.write_files import answer_of, write_job

    if on is None or on not in SCHEDULERS:
        what = "a launch needs the name of a scheduler"
        usage = f"--on {', --on '.join(SCHEDULERS)}"
        raise ConfigError(codes.CLI_OPTION(what, "--on", on or "not given", usage))
    flags = {
        "launch.nnodes": nodes,
        "launch.gpus_per_node": gpus_per_node,
        "launch.nproc": nproc,
        "launch.time_limit": time,
    }
    loaded = load_to_start(
        config, overrides, {key: value for key, value in flags.items() if value is not None}
    )
    request = JobRequest(
        config=config.absolute(),
        overrides=tuple(overrides or ()),
        scheduler=on,
        program=(sys.executable, "-m", "paceline.cli.main"),
        folder=Path.cwd(),
        import_path=import_path(os.environ),
        out=out.absolute() if out else None,
    )
    job, findings = checked_job(loaded, request, os.environ)
    rendering = scheduler_named(on)(job)
    print_diagnostics((*loaded.notes, *findings))
    for path in write_job(job.out, rendering, loaded.config.training.output_access):
        typer.echo(f"wrote {path}", err=True)
    for note in rendering.notes:
        typer.echo(f"note: {note}", err=True)
    for argv in rendering.submit:
        if submit:
            typer.echo(answer_of(argv, os.environ).strip())
        else:
            typer.echo(shlex.join(argv))
