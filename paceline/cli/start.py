"""Start a run from the command line: config → plan → run directory → processes → exit code.

Starts are faster without collecting garbage.
"""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.errors import print_diagnostics
from paceline.core.errors import BusyError, ExitCode
from paceline.launch.preflight.load_config import load_to_start
from paceline.launch.process_spec import LaunchOptions
from paceline.launch.program import tolerate_loss
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.runlog.lines import VERBOSE, next_commands

if TYPE_CHECKING:
    from paceline.config.load import Loaded


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Inside, Python collects no garbage; later collections skip the objects that exist at the end.

    Modules and plans live long. A command that imports for half a second would spend a sixth of it on
    collections, half of that at exit.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # What is there now stays for good: later collections need not look at it
        gc.freeze()
        if enabled:
            gc.enable()


def start(
    config_file: Path,
    overrides: Sequence[str],
    options: LaunchOptions,
    *,
    dry_run: bool = False,
    one_process: bool = False,
    verbose: bool = False,
) -> int:
    """Run a training to its end and return its exit code. Raises ConfigError before any process starts.

    ``one_process``: use one process unless the config sets ``launch.nproc``, whatever the machine has.
    ``verbose``: print every decision of the plan and every line of the ranks.
    """
    shown = {VERBOSE: "1"} if verbose else {}
    if not dry_run:
        tolerate_loss()
    with nothing_collected():
        from paceline.launch.prediction_ledger import before_training
        from paceline.launch.start_run import check_run
        from paceline.plan.explain import explain

        # Everything that can be refused is refused before any process starts or a file is written
        options, loaded = _loaded(config_file, overrides, options, one_process)
        ready = check_run(loaded, options, config_file, overrides, starts=not dry_run)
    # Print the plan; a dry run ends here
    print_diagnostics((*loaded.notes, *ready.warnings))
    if not dry_run:
        print(before_training(ready.plan, {**os.environ, **shown}, ready.warnings), end="", flush=True)
    else:  # no plan.json is written: the printed commands read the YAML
        print(explain(ready.plan), end="", flush=True)
        for spec in (*ready.servers(), *ready.commands()):
            print(spec.shell_line())
        return 0
    print_diagnostics(ready.claim())
    try:
        code = ready.start(environ=shown)
    except BusyError as lost:  # its rank has said so
        return int(lost.exit_code)
    if code == ExitCode.STOPPED and ready.leads:
        resume = resuming_command(config_file, overrides, options)
        # A new run may have no checkpoint yet
        saved = ready.run_dir.checkpoints.is_dir() and any(ready.run_dir.checkpoints.iterdir())
        answers = not algorithm_spec(ready.plan.algorithm).scalar_head
        print(next_commands(ready.run_dir.root, resume=resume, saved=saved, answers=answers), flush=True)
    return code


def resuming_command(config_file: Path, overrides: Sequence[str], options: LaunchOptions) -> str:
    """Return the command line that resumes a stopped run."""
    kept = [override for override in overrides if not override.startswith("training.resume_from_checkpoint=")]
    keys = {**options.flags(), "training.resume_from_checkpoint": None}
    settings = [f"{key}={value}" for key, value in keys.items() if value is not None]
    launcher = ["--launcher", options.launcher] if options.launcher else []
    words = ["paceline", "train", str(config_file), *kept, *settings, *launcher, "--resume", "latest"]
    return shlex.join(words)


def _loaded(
    config_file: Path, overrides: Sequence[str], options: LaunchOptions, one_process: bool
) -> tuple[LaunchOptions, Loaded]:
    """Return the options and the config; ``one_process`` sets one process unless the config sets a number."""
    loaded = load_to_start(config_file, overrides, options.flags())
    if not one_process or loaded.config.launch.nproc is not None:
        return options, loaded
    options = replace(options, nproc=1)
    return options, load_to_start(config_file, overrides, options.flags())
