"""``paceline.rehearse`` and the verb: the life of a run in minutes, on the real ranks."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api.arguments import ConfigLike, Overrides, bad_argument, read, source_of
from paceline.launch.process_spec import LaunchOptions

if TYPE_CHECKING:
    from paceline.rehearsal.rehearse import Rehearsal


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
