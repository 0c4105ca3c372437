"""Verbs of jobs: ``paceline launch``, and ``status``, ``logs``, ``stop`` and ``resume`` of a run."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import Run, existing_run
from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.options import Overrides, RunFolder, RunOrUrl
from paceline.cli.process import become, become_program
from paceline.config.registries.object_store_url import is_url
from paceline.core.errors import ConfigError
from paceline.core.files import listed, open_run_file
from paceline.core.rundir import RunDir
from paceline.launch.launch_record import LaunchedBy, read_launch, request_stop, write_launch
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.process_spec import import_path
from paceline.schedulers import codes as scheduler_codes
from paceline.schedulers.control import answer_of, control_of
from paceline.schedulers.job import ArrayTask
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
_READ_BYTES = 1 << 16


def launch(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The YAML file; with --init the one to write.")
    ],
    overrides: Overrides = None,
    on: On = None,
    init: Annotated[
        bool,
        typer.Option("--init", help="Ask for the site's launch: keys, and write them to CONFIG to extend."),
    ] = False,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    nproc: Nproc = None,
    time: Time = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=A,B,C", help="A run for each value, as in sweep: one array job."
        ),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Also hand the job to the scheduler.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the files [default: RUN-launch].")
    ] = None,
) -> None:
    """Write the job of a scheduler from one YAML, and print the command that starts it.

    The config is checked as train checks it, as far as this machine can know. The keys of launch: hold what
    the site wants: partition, account, image, mounts, variables, modules.
    """
    if init:
        _init(config, overrides or [], on)
        return
    from paceline.schedulers.check_job import JobRequest, checked_job
    from paceline.schedulers.table import scheduler_named
    from paceline.schedulers.write_files import write_job

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
    tasks = _array_tasks(config, overrides or [], sweep, Path(loaded.config.run_directory()))
    request = JobRequest(
        config=config.absolute(),
        overrides=tuple(overrides or ()),
        scheduler=on,
        program=(sys.executable, "-m", "paceline.cli.main"),
        folder=Path.cwd(),
        import_path=import_path(os.environ),
        out=out.absolute() if out else None,
        tasks=tasks,
    )
    job, findings = checked_job(loaded, request, os.environ)
    rendering = scheduler_named(on)(job)
    print_diagnostics((*loaded.notes, *findings))
    for path in write_job(job.out, rendering, loaded.config.training.output_access):
        typer.echo(f"wrote {path}", err=True)
    for note in rendering.notes:
        typer.echo(f"note: {note}", err=True)
    for argv in rendering.submit:
        if submit and rendering.foreground:
            become_program(argv)
        elif submit:
            typer.echo(answer_of(argv, os.environ).strip())
        else:
            typer.echo(shlex.join(argv))


def _init(to: Path, given: list[str], on: str | None) -> None:
    from paceline.cli.jobs.site_file import scheduler_here, write_site

    answers = dict(setting.partition("=")[::2] for setting in given)
    scheduler = on or scheduler_here(os.environ)
    write_site(to, scheduler, answers, os.environ)
    typer.echo(f"wrote {to}", err=True)
    typer.echo(f"a config takes it with: extends: {to}; then paceline launch CONFIG --on {scheduler}")


def _array_tasks(
    config: Path, overrides: list[str], sweep: list[str] | None, run: Path
) -> tuple[ArrayTask, ...]:
    """Return the runs of a sweep that are not complete, each in a folder next to ``run``."""
    from paceline.api.several_runs import planned_runs

    if not sweep:
        return ()
    planned = planned_runs(config, sweep, run.absolute().with_name(f"{run.name}-sweep"), overrides)
    # A job resumes by itself, and sets nothing aside
    own = ("training.resume_from_checkpoint=", "training.overwrite_output_dir=")
    tasks = tuple(
        ArrayTask(task.name, tuple(s for s in task.settings if not s.startswith(own)), str(task.path))
        for task in planned
        if task.todo != "done"
    )
    if not tasks:
        where = ", ".join(str(task.path) for task in planned[:3])
        raise ConfigError(
            codes.CLI_OPTION("all runs of the sweep are complete", "--sweep", where, "other values")
        )
    return tasks


def status(run: RunOrUrl) -> None:
    """Show whether a run goes on, what started it, what its scheduler says, and its newest checkpoint.

    At a URL: its last commit, and the run that holds it.
    """
    if is_url(run):
        become("paceline.checkpoint.main", "status", run)
    opened = Run(run)
    folder, checkpoints = RunDir.at(opened.path), [c for c in opened.checkpoints() if c.problem is None]
    typer.echo(f"run         {folder.root}: {opened.outcome}, step {opened.history.last_step}")
    launched = read_launch(folder)
    if launched is not None:
        typer.echo(f"{launched.scheduler:<11} {control_of(launched).state(launched, os.environ)}")
    if checkpoints:
        typer.echo(f"checkpoint  {checkpoints[-1].path}")
    if folder.stop_request.is_file():
        typer.echo(f"stopped     on request; paceline resume {shlex.quote(run)} goes on")


def logs(
    run: RunFolder,
    rank: Annotated[
        int | None, typer.Argument(metavar="[RANK]", min=0, help="A rank's log [default: the run's].")
    ] = None,
) -> None:
    """Print the run's log, or that of one rank."""
    folder = RunDir.at(existing_run(run))
    path = folder.training_log if rank is None else folder.rank_log(rank)
    if not path.is_file():
        there = [
            log.stem.removeprefix("rank-").lstrip("0") or "0" for log in listed(folder.logs, "rank-*.log")
        ]
        raise ConfigError(codes.CLI_NO_LOG(str(path), f"logs of rank {', '.join(there) or 'none'}"))
    with open_run_file(path) as file:
        while block := file.read(_READ_BYTES):
            typer.echo(block.decode("utf-8", "replace"), nl=False)


def stop(run: RunFolder) -> None:
    """Make a run save and end; no scheduler starts it again."""
    folder = RunDir.at(existing_run(run))
    launched = _launched(folder)
    request_stop(folder, launched.job)
    typer.echo(control_of(launched).stop(launched, os.environ))
    name = shlex.quote(str(run))
    typer.echo(f"paceline status {name} shows the end, paceline resume {name} goes on")


def resume(run: RunFolder) -> None:
    """Go on with a run that has ended, in the way it was started."""
    folder = RunDir.at(existing_run(run))
    launched = _launched(folder)
    control = control_of(launched)
    argv = control.resume(launched, os.environ)
    typer.echo(shlex.join(argv), err=True)
    os.chdir(launched.folder)
    if not launched.job:  # a process of this terminal
        become_program(argv)
    printed = answer_of(argv, os.environ)
    typer.echo(printed.strip())
    # Until the new job starts, stop and status are of it, not of the one that has ended
    write_launch(folder, replace(launched, job=control.submitted(printed) or launched.job))


def _launched(folder: RunDir) -> LaunchedBy:
    launched = read_launch(folder)
    if launched is None:
        raise ConfigError(scheduler_codes.SCHEDULERS_NO_RECORD(str(folder.launched_by)))
    return launched
