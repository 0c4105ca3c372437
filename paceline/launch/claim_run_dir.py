"""Claim a run directory, so that another run is never overwritten by accident."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from paceline.config.migrations import KEY as VERSION
from paceline.config.migrations import newest
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import BusyError, ConfigError
from paceline.core.files import listed, no_file, not_writable, open_run_file
from paceline.core.json_types import NO_UTF8, as_object
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import open_to_strangers
from paceline.launch import codes
from paceline.launch.launch_record import LaunchedBy, write_launch
from paceline.launch.supervision.exit_record import begun_start, is_under_way

if TYPE_CHECKING:
    from paceline.config.sections.training import TrainingSection

WAIT_SECONDS = 15.0  # for ranks that outlive a killed launcher to save and leave
_LOOK_SECONDS = 0.25  # between looks at a lock that another process holds
_KEY, _UNWRITABLE = "training.output_dir", "the output directory cannot be written"
_LOOK_BYTES = 1 << 20  # the first step is among the first events of a run


def check_claim(run: RunDir, *, overwrite: bool, resume: bool, wait: float = 0.0) -> None:
    """Raise ConfigError unless a run may write into ``run``; BusyError if another one does.

    It may if the directory is new, is to be resumed, or is to be set aside by ``overwrite_output_dir``.
    ``wait``: seconds to wait for another process, such as ranks that still save after their launcher was
    killed.
    """
    if os.path.isfile(run.root) or no_file(run.root):
        problem, hint = "the output directory is a file", "name a directory instead"
        raise ConfigError(codes.RUN_NOT_A_DIRECTORY(problem, _KEY, str(run.root), hint))
    if wrong := not_writable(run.root):
        hint = "name a directory that you can write to"
        raise ConfigError(codes.RUN_NOT_WRITABLE(_UNWRITABLE, _KEY, f"{run.root}: {wrong}"[:600], hint))
    if not run.root.is_dir():
        return
    _await_free(run, wait)
    if holds_work(run) and not overwrite and not resume:
        raise ConfigError(codes.RUN_EXISTS(_KEY, str(run.root)))


def check_run_dir(run: RunDir, training: TrainingSection, wait: float = 0.0) -> None:
    """Check that a run of this config may write into ``run``, as ``check_claim`` does."""
    resume = bool(training.resume_from_checkpoint)
    check_claim(run, overwrite=training.overwrite_output_dir, resume=resume, wait=wait)


def _await_free(run: RunDir, seconds: float) -> None:
    """Return once no run writes into the directory. Raises BusyError after ``seconds``."""
    deadline, announcement = time.monotonic() + seconds, f"waiting up to {seconds:.0f} s"
    while True:
        with suppress(Timeout), FileLock(str(run.lock), timeout=0):
            if not is_under_way(begun_start(run)):
                return
        if time.monotonic() >= deadline:
            raise BusyError(in_use(run))
        if announcement:
            print(f"{run.root} is in use by another process: {announcement}", file=sys.stderr, flush=True)
            announcement = ""
        time.sleep(_LOOK_SECONDS)


def holds_work(run: RunDir) -> bool:
    """Whether the directory holds a training step or a checkpoint.

    A start that failed before step 1 leaves neither.
    """
    if listed(run.checkpoints, "step-*"):
        return True
    for path in listed(run.events_dir, "*.jsonl"):
        with suppress(FileNotFoundError), open_run_file(path) as file:  # deleted meanwhile
            if b'"kind":"step"' in file.read(_LOOK_BYTES):
                return True
    return False


def in_use(run: RunDir) -> Diagnostic:
    """Return the diagnostic that another process holds the run directory."""
    return codes.RUN_IN_USE(_KEY, str(run.root))


def claim(
    run: RunDir,
    *,
    plan: dict[str, Any],
    config_file: str | None,
    overwrite: bool,
    resume: bool,
    redact: Callable[[str], str] = str,
) -> tuple[Diagnostic, ...]:
    """Prepare ``run`` and write config and plan; return notes.

    With ``overwrite`` an old run is renamed, not deleted.

    ``redact`` is applied to the copy of ``config_file``, comments included; ``plan`` holds no secrets
    (``config/written_values.py``). Raises ConfigError as ``check_claim`` does, or if the disk refuses it.
    """
    check_claim(run, overwrite=overwrite, resume=resume)
    notes: list[Diagnostic] = []
    if words := open_to_strangers(run.root):
        notes.append(codes.RUN_OPEN(_KEY, words))
    try:
        # Set the old run aside under a free name.
        if holds_work(run) and overwrite and not resume:
            names = (run.root.with_name(f"{run.root.name}.old-{n}") for n in range(1, 10_000))
            aside = next(path for path in names if not path.exists())
            run.root.rename(aside)
            notes.append(codes.RUN_SET_ASIDE(str(aside)))
        # Create the folders and write config and plan.
        for folder in (run.root, run.logs, run.events_dir, run.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if config_file is not None and Path(config_file).is_file():
            text = Path(config_file).read_bytes().decode("utf-8", "surrogateescape")
            run.config_yaml.write_bytes(redact(text).encode("utf-8", "surrogateescape"))
        config = {VERSION: newest(), **as_object(plan.get("config"))}
        for path, data in ((run.config_json, config), (run.plan_json, plan)):
            text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
            path.write_bytes(text.encode("utf-8", NO_UTF8))
        write_launch(run, LaunchedBy.here(os.environ, run))
    except OSError as exc:
        raise ConfigError(
            codes.RUN_NOT_WRITABLE(
                _UNWRITABLE,
                _KEY,
                f"{run.root}: {exc.strerror or exc}",
                "name another directory, or free disk space",
            )
        ) from exc
    return tuple(notes)
