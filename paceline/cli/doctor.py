"""``paceline doctor``: this machine, the nodes of a config's job, a run, or logs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from paceline.api.run import existing_run
from paceline.cli import codes
from paceline.cli.options import Overrides
from paceline.cli.start import resuming_command
from paceline.core.diagnostics import errors
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.rundir import RunDir
from paceline.launch.environment.job_managers import process_rank
from paceline.launch.network import check_cluster
from paceline.launch.process_spec import LaunchOptions
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.doctor.logs.diagnose import FailureReport

_SUBJECT = (
    "A YAML file: this node is checked for its job, with --nnodes together with the others. A run directory:"
    " what ended the run."
)


def doctor(
    subject: Annotated[Path | None, typer.Argument(metavar="CONFIG|RUN", help=_SUBJECT)] = None,
    overrides: Overrides = None,
    nnodes: Annotated[int | None, typer.Option(help="Nodes [default: 1].")] = None,
    node_rank: Annotated[int | None, typer.Option(help="Rank of this node [default: 0].")] = None,
    master_addr: Annotated[str | None, typer.Option(help="Address of node 0.")] = None,
    master_port: Annotated[int | None, typer.Option(help="Port on node 0 [default: 29500].")] = None,
    nproc: Annotated[int | None, typer.Option(help="Processes on this node.")] = None,
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for the other nodes.")] = 30,
    logs: Annotated[
        bool,
        typer.Option("--log", help="The arguments are logs of one run, by any trainer: what failed first."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check this machine, or all nodes of a job before it runs, and report problems and how to fix them.

    With CONFIG run the same command on every node, each with its --node-rank (srun and mpirun give it). All
    print the same report. Exit code: 0 if a training can run or a run is sound, 1 for a problem or a failure,
    2 for wrong arguments.
    """
    if logs:
        files = [subject] if subject is not None else []
        doctor_of_logs([*files, *map(Path, overrides or ())], as_json=as_json)
    options = LaunchOptions(nproc, nnodes, node_rank, master_addr, master_port)
    if subject is not None and (subject.is_file() or options != LaunchOptions() or overrides):
        doctor_of_config(subject, overrides or (), options, wait, as_json=as_json)
    if subject is not None:
        doctor_of_run(subject, as_json=as_json)
    doctor_of_machine(as_json=as_json)


def doctor_of_logs(paths: Sequence[Path], *, as_json: bool) -> NoReturn:
    """Report on the logs of one run. Exits: 0 if nothing was found, 1 for a failure.

    Raises ConfigError for what is no file.
    """
    from paceline.doctor.logs.diagnose import diagnose, read_logs

    if not paths:
        raise ConfigError(codes.CLI_DOCTOR_LOG("command line", "--log without a file"))
    try:
        report = diagnose(read_logs(paths))
    except OSError as error:
        where = str(error.filename or paths[0])
        raise ConfigError(codes.CLI_DOCTOR_NO_LOG(where, error.strerror or str(error))) from None
    _show_failure(report, as_json=as_json)


def doctor_of_run(path: Path, *, as_json: bool) -> NoReturn:
    """Report on a run, from its records and logs. Exits: 0 if it is sound, 1 for a failure.

    Raises ConfigError for what is no run.
    """
    from paceline.api.run import checkpoints
    from paceline.doctor.run_failure import RunStanding, diagnose_run
    from paceline.watch.page.glance import read_state, read_world_size

    run = RunDir.at(existing_run(path))
    sound = [checkpoint for checkpoint in checkpoints(run.root) if checkpoint.problem is None]
    newest, saved = (str(sound[-1].path), sound[-1].step) if sound else ("", 0)
    ranks = read_world_size(run) if not run.exits(1).exists() else None
    output = f"training.output_dir={run.root}"  # the file may name another one
    resume = resuming_command(run.config_yaml, (output,), LaunchOptions(ranks))
    if not sound:
        resume = resume.removesuffix("latest") + "auto"
    name, seconds = read_state(run)
    _show_failure(diagnose_run(run, RunStanding(name, seconds, newest, saved, resume)), as_json=as_json)


def _show_failure(report: FailureReport, *, as_json: bool) -> NoReturn:
    clean = Redactor.of(os.environ)
    if as_json:
        typer.echo(json.dumps(report.to_json(clean), indent=1, ensure_ascii=False))
    else:
        typer.echo(report.text(clean))
    raise typer.Exit(int(ExitCode.FAILED if report.failed else ExitCode.OK))


def doctor_of_machine(*, as_json: bool) -> None:
    """Check this machine. Exits."""
    from paceline.doctor import report
    from paceline.doctor.inspect import inspect
    from paceline.doctor.report import findings

    seen = inspect(dict(os.environ))
    problems = findings(seen)
    if as_json:
        typer.echo(json.dumps(report.as_json(seen, problems), indent=1, ensure_ascii=False))
    else:
        typer.echo(report.text(seen, problems))
    raise typer.Exit(int(ExitCode.FAILED if errors(problems) else ExitCode.OK))


def doctor_of_config(
    config: Path, overrides: Sequence[str], options: LaunchOptions, wait: float, *, as_json: bool
) -> None:
    """Check this node for the config's job, together with the job's other nodes. Exits."""
    from paceline.doctor.nodes.check_nodes import check_nodes
    from paceline.doctor.nodes.facts import open_job

    job = open_job(config, overrides, of_launcher(options), dict(os.environ))
    check_cluster(job.cluster)
    verdict = check_nodes(job, wait)
    if as_json:
        typer.echo(json.dumps(verdict.to_json(), indent=1, ensure_ascii=False))
    else:
        typer.echo(verdict.text())
    raise typer.Exit(int(ExitCode.FAILED if errors(verdict.diagnostics()) else ExitCode.OK))


def of_launcher(options: LaunchOptions) -> LaunchOptions:
    """Return ``options`` with what srun or mpirun tell, where they have started this command.

    Of several processes on a node the first one checks it, and the others exit.
    """
    here = process_rank(os.environ)
    if here.size == 1:
        return options
    if here.rank % here.local_size:
        raise typer.Exit(int(ExitCode.OK))
    return replace(
        options,
        nproc=options.nproc or (here.local_size if here.local_size > 1 else None),
        nnodes=options.nnodes or max(1, here.size // here.local_size),
        node_rank=here.rank // here.local_size if options.node_rank is None else options.node_rank,
        master_addr=options.master_addr or here.host or None,
        master_port=options.master_port
        or (int(port) if (port := os.environ.get("MASTER_PORT", "")).isdecimal() else None),
    )
