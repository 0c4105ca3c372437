"""Verbs of jobs: ``paceline launch``, and ``status``, ``logs``, ``stop`` and ``resume`` of a run.

``paceline launch --init``: a site's ``launch:`` keys, from questions that the machine helps to answer.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.api.run import Run, existing_run
from paceline.cli import codes
from paceline.cli.errors import print_diagnostics
from paceline.cli.options import Overrides, RunFolder, RunOrUrl
from paceline.cli.process import become, become_program
from paceline.config.migrations import KEY, newest
from paceline.config.registries.object_store_url import is_url
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.files import listed, open_run_file
from paceline.core.rundir import RunDir
from paceline.launch.launch_record import (
    LaunchedBy,
    job_folder,
    read_launch,
    read_newest_launch,
    request_stop,
    write_launch,
)
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.process_spec import import_path
from paceline.plan.hardware.device_catalogue import card_named
from paceline.schedulers import codes as scheduler_codes
from paceline.schedulers.control import answer_of, control_of, job_control
from paceline.schedulers.job import SCHEDULERS, ArrayTask, ClusterJob, Rendering

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
    from paceline.schedulers.job import scheduler_named
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
    _hand_over(job, rendering, on, submit=submit)


def _hand_over(job: ClusterJob, rendering: Rendering, scheduler: str, *, submit: bool) -> None:
    """Submit a job's files, or print the commands that do; record its name next to them."""
    record = LaunchedBy.submitted(scheduler, rendering.name, job.run, job.out)
    if submit and record.job:
        job_control(scheduler).resume(record, os.environ)  # refuses where a job of this name has not ended
    for argv in rendering.submit:
        if submit and rendering.foreground:
            become_program(argv)
        elif submit:
            printed = answer_of(argv, os.environ)
            typer.echo(printed.strip())
            record = replace(record, job=job_control(scheduler).submitted(printed) or record.job)
        else:
            typer.echo(shlex.join(argv))
    # What is only written has started nothing: the record of a run that is here stays the newer one
    if record.job and not job.tasks and (submit or read_launch(RunDir.at(Path(job.run))) is None):
        write_launch(RunDir.at(job.out), record)
        if job_folder(Path(job.run)).root != job.out:
            typer.echo(f"note: status, stop and resume take {shlex.quote(str(job.out))}", err=True)


def _init(to: Path, given: list[str], on: str | None) -> None:

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
    launched = read_newest_launch(Path(run))
    if launched is not None and not RunDir.at(Path(run)).exists():
        typer.echo(f"run         {launched.run}: it has not begun, or its directory is on other machines")
        typer.echo(_state(launched))
        return
    opened = Run(run)
    folder, checkpoints = RunDir.at(opened.path), [c for c in opened.checkpoints() if c.problem is None]
    typer.echo(f"run         {folder.root}: {opened.outcome}, step {opened.history.last_step}")
    if launched is not None:
        typer.echo(_state(launched))
    if checkpoints:
        typer.echo(f"checkpoint  {checkpoints[-1].path}")
    if folder.stop_request.is_file():
        typer.echo(f"stopped     on request; paceline resume {shlex.quote(run)} goes on")


def _state(launched: LaunchedBy) -> str:
    return f"{launched.scheduler:<11} {control_of(launched).state(launched, os.environ)}"


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
    launched = _launched(run)
    if RunDir.at(run).exists():
        request_stop(RunDir.at(run), launched.job)
    typer.echo(control_of(launched).stop(launched, os.environ))
    name = shlex.quote(str(run))
    typer.echo(f"paceline status {name} shows the end, paceline resume {name} goes on")


def resume(run: RunFolder) -> None:
    """Go on with a run that has ended, in the way it was started."""
    run = run.absolute()  # the command starts in the folder of the first start
    launched = _launched(run)
    control = control_of(launched)
    argv = control.resume(launched, os.environ)
    typer.echo(shlex.join(argv), err=True)
    launched.enter_folder()
    if not launched.job:  # a process of this terminal
        become_program(argv)
    printed = answer_of(argv, os.environ)
    typer.echo(printed.strip())
    # Until the new job starts, stop and status are of it, not of the one that has ended
    folder = RunDir.at(run) if RunDir.at(run).exists() else job_folder(run)
    write_launch(folder, replace(launched, job=control.submitted(printed) or launched.job))


def _launched(run: Path) -> LaunchedBy:
    launched = read_newest_launch(run)
    if launched is None:
        folder = RunDir.at(existing_run(run))
        raise ConfigError(scheduler_codes.SCHEDULERS_NO_RECORD(str(folder.launched_by)))
    return launched


_SECTION = "launch"


@dataclass(frozen=True)
class SiteQuestion:
    """A key below ``launch:``, its question and the answer that the machine suggests ("": none).

    ``is_needed``: without an answer nothing is written.
    """

    key: str
    text: str
    suggested: str = ""
    is_needed: bool = False


@dataclass(frozen=True)
class Partition:
    """A partition of Slurm: its accelerators by node, and their name as the site spells it."""

    name: str
    gpus: int
    gpu: str
    is_default: bool


def write_site(to: Path, scheduler: str, given: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Write a YAML with the site's keys, to be named in a config's ``extends``.

    ``given``: answers by key. Without a terminal suggestions apply. Raises ConfigError with all keys that
    have none.
    """
    if to.exists():
        raise ConfigError(codes.CLI_OPTION("the file exists already", str(to), str(to), "name another file"))
    questions = questions_of(scheduler, environ)
    by_key = {f"{_SECTION}.{question.key}": question for question in questions}
    problems = [
        codes.CLI_OPTION("init has no such question", "KEY=VALUE", key, f"one of: {', '.join(by_key)}")
        for key in given
        if key not in by_key
    ]
    typed = sys.stdin is not None and sys.stdin.isatty()
    answers: dict[str, str] = {}
    for key, question in by_key.items():
        answer = given.get(key, "") or (_typed(question) if typed and not problems else question.suggested)
        if answer:
            answers[question.key] = answer
        elif question.is_needed:
            problem = f"no answer, and nothing suggests one: {question.text}"
            problems.append(codes.CLI_OPTION(problem, "launch --init", "", f"{key}=…"))
    if problems:
        raise ConfigError(*problems)
    to.write_text(_yaml(answers), encoding="utf-8")


def questions_of(scheduler: str, environ: Mapping[str, str]) -> list[SiteQuestion]:
    """Return the questions for a scheduler, with what its commands suggest."""
    gpus = SiteQuestion("gpus_per_node", "Accelerators of a node; 0: none")
    if scheduler == "slurm":
        found = partitions(_suggestion(("sinfo", "--noheader", "--format=%P|%G"), environ))
        default = next((p for p in found if p.is_default), found[0] if found else Partition("", 0, "", True))
        names = f" ({', '.join(p.name for p in found)})" if found else ""
        return [
            SiteQuestion("partition", f"Partition{names}", default.name),
            SiteQuestion("account", "Account"),
            SiteQuestion("qos", "Quality of service"),
            SiteQuestion(gpus.key, gpus.text, str(default.gpus) if found else "", is_needed=True),
            SiteQuestion("gpu", "Their name, to plan memory and time", _card(default.gpu)),
            SiteQuestion("interface", "Network interface between the nodes", _fastest_interface()),
        ]
    if scheduler == "kubernetes":
        space = _suggestion(
            ("kubectl", "config", "view", "--minify", "-o", "jsonpath={..namespace}"), environ
        )
        path = r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
        counts = re.findall(r"\d+", _suggestion(("kubectl", "get", "nodes", "-o", path), environ))
        return [
            SiteQuestion("image", "Image with Paceline", is_needed=True),
            SiteQuestion("kubernetes.namespace", "Namespace", space.strip()),
            SiteQuestion(gpus.key, gpus.text, max(counts, key=int, default=""), is_needed=True),
            SiteQuestion("gpu", "Their name, to plan memory and time"),
        ]
    hosts = (
        [SiteQuestion("hostfile", "File of hosts, NAME slots=PROCESSES")]
        if scheduler in ("ssh", "mpi")
        else []
    )
    return [*hosts, SiteQuestion(gpus.key, gpus.text, is_needed=True)]


def partitions(shown: str) -> list[Partition]:
    """Return the partitions of ``sinfo --format=%P|%G``: ``gpu*|gpu:h100:8(S:0-1)``."""
    found: dict[str, Partition] = {}
    for line in shown.splitlines():
        name, _, resources = line.strip().partition("|")
        match = re.search(r"gpu:(?:([A-Za-z][\w.-]*):)?(\d+)", resources)
        gpus, gpu = (int(match[2]), match[1] or "") if match else (0, "")
        before = found.get(name)
        if name and (before is None or before.gpus < gpus):
            found[name] = Partition(name.rstrip("*"), gpus, gpu, name.endswith("*"))
    return list(found.values())


def scheduler_here(environ: Mapping[str, str]) -> str:
    """Return the scheduler whose commands this machine has; ``local`` where it has none."""
    programs = {"slurm": "sinfo", "kubernetes": "kubectl"}
    return next((n for n, p in programs.items() if shutil.which(p, path=environ.get("PATH"))), "local")


def _suggestion(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return what a command prints; empty where it is not there or fails, since it only suggests."""
    try:
        return answer_of(argv, environ)
    except PacelineError as error:
        typer.echo(f"nothing is suggested: {error.diagnostics[0].what}", err=True)
        return ""


def _card(name: str) -> str:
    """Return the catalogue's name of an accelerator as a site spells it; empty if it is none."""
    try:
        return card_named(name).name if name else ""
    except ConfigError:
        return ""


def _fastest_interface() -> str:
    """Return an InfiniBand interface of this machine, if it has one: nodes mostly are alike."""
    devices = Path("/sys/class/net")
    return next((path.name for path in sorted(devices.glob("ib*"))), "") if devices.is_dir() else ""


def _typed(question: SiteQuestion) -> str:
    # An empty answer leaves the key out
    return str(typer.prompt(question.text, default=question.suggested, err=True)).strip()


def _yaml(answers: Mapping[str, str]) -> str:
    from ruamel.yaml import YAML

    from paceline.config.yaml_text.scalars import parse_number
    from paceline.core.json_types import JsonObject, put_at

    section: JsonObject = {}
    for key, answer in answers.items():
        number = parse_number(answer)
        put_at(section, key.split("."), answer if number is None else int(number))
    text = io.StringIO()
    text.write("# written by `paceline launch --init`; docs/reference/config.md describes every key\n")
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.dump({KEY: newest(), _SECTION: section}, text)
    return text.getvalue()
