"""``paceline.train``: a whole training from a script, under a launcher, or in a notebook.

``paceline.rehearse`` and the verb: the life of a run in minutes, on the real ranks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.api.arguments import (
    ConfigLike,
    ConfigSource,
    Overrides,
    Part,
    Rows,
    bad_argument,
    dataset_setting,
    importable_name,
    named_parts,
    read,
    source_of,
)
from paceline.api.callbacks import Listeners, OnEvent, split_callbacks
from paceline.api.run import Run
from paceline.core.diagnostics import Diagnostic, render_all
from paceline.core.errors import BusyError, ConfigError, ExitCode, PacelineError
from paceline.core.files import read_run_file
from paceline.core.json_types import Json
from paceline.core.package import cache_folder
from paceline.core.rundir import RunDir
from paceline.launch.environment.job_managers import process_rank
from paceline.launch.process_spec import LaunchOptions
from paceline.launch.program import keep_docstrings

if TYPE_CHECKING:
    from paceline.launch.start_run import CheckedRun
    from paceline.rehearsal.rehearse import Rehearsal


RAN = (ExitCode.OK, ExitCode.STOPPED, ExitCode.CLOSING)


def train(
    config: ConfigLike,
    *,
    overrides: Overrides | None = None,
    algorithm: Part | None = None,
    strategy: Part | None = None,
    dataset: Rows | None = None,
    eval_dataset: Rows | None = None,
    converter: Part | None = None,
    callbacks: Iterable[Part] | None = None,
    trackers: Sequence[Part] | None = None,
    metrics: Sequence[Part] | None = None,
    rewards: Sequence[Part] | None = None,
    nproc: int | None = None,
    resume: str | None = None,
    on_event: OnEvent | None = None,
    quiet: bool = False,
) -> Run:
    """Train, and return the run when it has ended (``Run.outcome``: completed, early_stopped or stopped).

    - ``config``: a YAML file, a mapping with its sections, or ``load_config``'s answer, with ``overrides`` by
      dotted key
    - ``algorithm``, ``strategy``: a name, ``module:SPEC``, or an imported spec
    - ``dataset``, ``eval_dataset``: a path, rows (mappings, a ``datasets.Dataset``, a pandas frame), or an
      imported function that returns rows
    - ``converter``: a function from row to row, by name or imported
    - ``callbacks``: objects and functions are called in this process, names (``module:Class``) on every rank.
      ``trackers``, ``rewards``, ``metrics`` (of the answers that each evaluation then generates): names, or
      imported.
    - ``nproc``: processes on this node
    - ``resume``: latest, auto or a checkpoint
    - ``on_event``: called with every event of the run, from a thread
    - ``quiet``: prints nothing

    Started once, it starts the run's ranks; in a process of torchrun, srun or another launcher it becomes one
    rank, and returns on each. A run directory that holds a run is never overwritten by default: a second call
    raises ConfigError (``run.exists``), and with ``resume="latest"`` it continues.

    Raises ConfigError before anything is started, PacelineError with the run's diagnostics when it fails, and
    KeyboardInterrupt when it was interrupted twice.
    """
    keep_docstrings()
    names, objects = split_callbacks(callbacks)
    hearing = Listeners(on_event, objects)
    flags: dict[str, Json] = {
        "training.algorithm": _named(algorithm, "algorithm"),
        "training.distributed_strategy": _named(strategy, "strategy"),
        "training.report_to": named_parts(trackers, "trackers"),
        "data.converter": _named(converter, "converter"),
        "training.callbacks": names,
        "training.eval_metrics": named_parts(metrics, "metrics"),
        "training.eval_generate": None if metrics is None else True,
        "training.rollout.rewards": named_parts(rewards, "rewards"),
        "training.resume_from_checkpoint": resume,
        "data.train": dataset_setting(dataset, "dataset", cache_folder(os.environ)),
        "data.eval": dataset_setting(eval_dataset, "eval_dataset", cache_folder(os.environ)),
    }
    source = source_of(config, overrides).with_overrides(flags)
    if process_rank(os.environ).size > 1:
        return _one_rank(source, nproc, hearing, quiet)
    return _all_ranks(source.with_overrides({"launch.nproc": nproc}), hearing, quiet)


def _named(part: Part | None, argument: str) -> str | None:
    return part if part is None or isinstance(part, str) else importable_name(part, argument)


def _all_ranks(source: ConfigSource, hearing: Listeners, quiet: bool) -> Run:
    """Check, plan, start this node's ranks and wait for them: as ``paceline train`` does."""
    from paceline.launch.prediction_ledger import before_training
    from paceline.launch.start_run import check_run

    loaded = read(source, ruled=False)
    with ExitStack() as open_until_the_end:
        ready = check_run(
            loaded, LaunchOptions(), open_until_the_end.enter_context(source.file()), source.settings()
        )
        if not quiet:
            _print(loaded.notes, ready.warnings)
            print(before_training(ready.plan, findings=ready.warnings), end="", flush=True)
        notes = ready.claim()
        if not quiet:
            _print(notes)
        hearing.open(open_until_the_end, ready.run_dir.events(0))
        code = start_ranks(ready, quiet, hearing.wants_stop.is_set)
    return _ended(ready.run_dir, code, None, hearing.problems())


def start_ranks(ready: CheckedRun, quiet: bool, requests_stop: Callable[[], bool]) -> int:
    if not quiet:
        return ready.start(requests_stop=requests_stop)
    with open(os.devnull, "wb") as nowhere:
        return ready.start(report=lambda text: None, output=nowhere.fileno(), requests_stop=requests_stop)


def _one_rank(source: ConfigSource, nproc: int | None, hearing: Listeners, quiet: bool) -> Run:
    """Run as the rank for which a launcher started this process; a child does the work."""
    from paceline.launch.start_run import outside_arguments
    from paceline.launch.supervision.child_rank import run_beneath

    here = process_rank(os.environ)
    if nproc is not None:
        raise bad_argument(
            "the launcher has started the ranks, so train(…) starts none",
            "nproc",
            str(nproc),
            "leave out nproc",
        )
    run_dir = RunDir.at(read(source, ruled=True).config.run_directory())
    with ExitStack() as open_until_the_end:
        file = open_until_the_end.enter_context(source.file())
        hearing.open(open_until_the_end, run_dir.events(here.rank))
        output = open_until_the_end.enter_context(open(os.devnull, "wb")).fileno() if quiet else None
        arguments = outside_arguments(file, source.settings(), LaunchOptions())
        code, finding = run_beneath(
            arguments, os.environ, output=output, requests_stop=hearing.wants_stop.is_set
        )
    return _ended(run_dir, code, finding, hearing.problems())


def _ended(run: RunDir, code: int, finding: Diagnostic | None, problems: Iterable[Diagnostic]) -> Run:
    """Return the run, or raise the error that ended it."""
    _print(problems)
    if code == ExitCode.STOPPED and finding is not None:
        raise BusyError(finding)
    if code in RAN:
        return Run(run.root)
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    findings = (finding,) if finding is not None else _recorded(run)
    if not findings:
        hint = f"see {run.logs}"
        findings = (codes.API_RUN_FAILED(f"the run ended with exit code {code}", str(run.root), "", hint),)
    raise (ConfigError if code == ExitCode.CONFIG else PacelineError)(*findings)


def _recorded(run: RunDir) -> tuple[Diagnostic, ...]:
    """Return the errors in the run directory: those of the result, else of the launcher."""
    for path, key in ((run.result_json, "diagnostics"), (run.exits(), "cause")):
        try:
            value = json.loads(read_run_file(path)).get(key)
        except (OSError, ValueError):
            continue
        rows = value if isinstance(value, list) else [value] if value else []
        if rows:
            return tuple(Diagnostic.from_json(row) for row in rows)
    return ()


def _print(*diagnostics: Iterable[Diagnostic]) -> None:
    text = render_all([diagnostic for some in diagnostics for diagnostic in some])
    if text:
        print(text, file=sys.stderr, flush=True)


def rehearse(
    config: ConfigLike,
    *,
    overrides: Overrides | None = None,
    nproc: int | None = None,
    steps: int = 8,
    limit: float = 1800.0,
    to: str | PathLike[str] | None = None,
) -> Rehearsal:
    """Start the run, evaluate, save, kill a rank, resume, stop, resume in a smaller world, export.

    ``steps``: optimizer steps of the first start; ``limit``: seconds of each; ``to``: keep the runs there.
    Returns a line for each stage: verdict, what was measured, what follows for the whole run. Nothing is
    written into the run directory. Raises ConfigError as ``train`` does before its start.
    """
    from paceline.rehearsal.rehearse import LEAST_STEPS, rehearse

    if steps < LEAST_STEPS:
        raise bad_argument("a rehearsal needs more steps", "steps", str(steps), f"{LEAST_STEPS} or more")
    source = source_of(config, overrides)
    options = LaunchOptions(nproc=nproc)
    with source.file() as file:
        return rehearse(
            read(source.with_overrides({"launch.nproc": nproc}), ruled=False),
            str(file),
            source.settings(),
            options,
            steps=steps,
            limit=limit,
            to=None if to is None else Path(to),
            report=lambda text: None,
            warn=lambda found: None,
        )
