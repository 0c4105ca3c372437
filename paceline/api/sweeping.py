"""The runs of a sweep: every combination of the values of some keys."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api import codes
from paceline.api.run import Run
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir

MOST_RUNS = 1000
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_LONGEST = 120


@dataclass(frozen=True)
class SweepRun:
    """One run: its settings as ``key=value``, and what is left to do: train, resume, again
    (it left no checkpoint) or nothing (done)."""

    name: str
    path: Path
    settings: tuple[str, ...]
    todo: str


def planned_runs(config: Path, given: Sequence[str], folder: Path) -> list[SweepRun]:
    """Return the runs of a sweep, in the order of the values.

    Raises ConfigError for any that cannot start.
    """
    from paceline.launch.preflight.load_config import load

    axes = [values_of(one) for one in given]
    if not any(len(values) > 1 for _, values in axes):
        hint = "paceline sweep CONFIG training.learning_rate=1e-4,3e-4"
        what = "no key has several values, so there is nothing to compare"
        raise ConfigError(codes.API_ARGUMENT(what, "command line", " ".join(given), hint))
    combinations = list(itertools.islice(itertools.product(*(values for _, values in axes)), MOST_RUNS + 1))
    if len(combinations) > MOST_RUNS:
        what = f"these are more than {MOST_RUNS:,} runs"
        raise ConfigError(codes.API_ARGUMENT(what, "command line", " ".join(given), "give fewer values"))
    runs = []
    for chosen in combinations:
        settings = [f"{key}={value}" for (key, _), value in zip(axes, chosen, strict=True)]
        several = [
            f"{key.rpartition('.')[2]}={value}"
            for (key, values), value in zip(axes, chosen, strict=True)
            if len(values) > 1
        ]
        name = _UNSAFE.sub("_", ",".join(several))[:_LONGEST]
        path = folder / name
        settings.append(f"training.output_dir={path}")
        url = load(config, settings).config.training.checkpoint_url
        if url is not None:  # each run writes to a URL of its own
            settings.append(f"training.checkpoint_url={url.rstrip('/')}/{name}")
        todo = _todo(path)
        if todo == "resume":
            settings.append("training.resume_from_checkpoint=latest")
        elif todo == "again":
            settings.append("training.overwrite_output_dir=true")  # renames what is there
        runs.append(SweepRun(name, path, tuple(settings), todo))
    if len({run.name for run in runs}) < len(runs):
        what = "two runs would have the same folder: a value is given twice, or differs in signs alone"
        raise ConfigError(codes.API_ARGUMENT(what, "command line", " ".join(given), "give each value once"))
    return runs


def values_of(setting: str) -> tuple[str, list[str]]:
    """Return (key, values) of ``key=a,b,c``; commas within brackets and braces separate nothing."""
    key, equals, text = setting.partition("=")
    if not key or not equals or not text:
        hint = "training.learning_rate=1e-4,3e-4"
        raise ConfigError(codes.API_ARGUMENT("this is no key with values", "command line", setting, hint))
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return key, [value.strip() for value in values]


def _todo(path: Path) -> str:
    if not RunDir.at(path).exists():
        return "train"
    run = Run(path)
    if run.outcome in ("completed", "early_stopped"):
        return "done"
    return "resume" if any(one.problem is None for one in run.checkpoints()) else "again"
