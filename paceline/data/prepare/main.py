"""Prepare data ahead of training.

``python -m paceline.data.prepare.main --plan FILE | --config-json FILE [--cache DIR]``.

Shows a progress bar with rate and ETA, then what became of every row. Exit codes: ``core.errors.ExitCode``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from paceline.config.schema import Config
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.json_types import JsonObject, as_object
from paceline.core.security.file_permissions import written_for
from paceline.core.units import human_count, human_seconds
from paceline.data import codes
from paceline.data.data_order import epoch_documents
from paceline.data.packing import best_fit_decreasing, efficiency
from paceline.data.prepare.build import PrepareProgress
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import RowKind, row_kind
from paceline.launch.program import program, terminal
from paceline.plan.algorithms.spec import algorithm_spec

_STAGES = {
    "fingerprint": "inspecting the data",
    "waiting": "another process is preparing the same data, waiting",
    "tokenise": "tokenising",
    "write": "writing",
    "done": "done",
}


class Bar:
    """A progress bar of the preparation; without a terminal, one line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
        )
        # Transient: the summary takes the bar's place
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("preparing", total=1.0, text="")
        self._printed = time.monotonic()

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def __call__(self, progress: PrepareProgress) -> None:
        """Show the progress."""
        text = rate(progress)
        stage = _STAGES[progress.stage]
        self._bar.update(self._task, description=stage, completed=progress.fraction or 0.0, text=text)
        if not self._console.is_terminal and time.monotonic() - self._printed > 10:
            self._printed = time.monotonic()
            done = f" {progress.fraction:.0%}" if progress.fraction is not None else ""
            self._console.print(f"{stage}{done} {text}".rstrip(), highlight=False)


def rate(progress: PrepareProgress) -> str:
    """Return rows, rows per second and the remaining time as text."""
    if not progress.rows:
        return ""
    left = f", {human_seconds(progress.eta_seconds)} left" if progress.eta_seconds is not None else ""
    speed = f", {progress.rows_per_second:,.0f} rows/s" if progress.rows_per_second else ""
    return f"{progress.rows:,} rows{speed}{left}"


def summary(
    prepared: Prepared, kind: RowKind, *, seq_len: int, packing: bool, seed: int, seconds: float
) -> list[str]:
    """Return the fate of the rows, which are of ``kind``, as lines of text."""
    counts = prepared.counts
    tokens = f"{human_count(counts.tokens)}, {human_count(counts.labels)} of them carry loss"
    if kind.answered:
        tokens = f"{human_count(counts.tokens)} of prompts: the answers that the model generates carry loss"
    elif not kind.learns_tokens:
        tokens = f"{human_count(counts.tokens)}: the loss is that of each row's class"
    lines = [
        (
            f"rows      {counts.rows_read:,} read, {counts.rows_used:,} used, {counts.rows_skipped:,}"
            f" skipped, {counts.rows_truncated:,} truncated"
        ),
        f"documents {counts.train_documents:,} for training, {counts.eval_documents:,} held out",
        f"tokens    {tokens}; the longest document has {prepared.longest:,}",
    ]
    if packing:
        table = prepared.train
        rows = epoch_documents(table.group_dataset, table.weights, seed, 0)
        lengths, room = table.group_lengths[rows], table.room(seq_len)
        bins = best_fit_decreasing(lengths, room)
        full = efficiency(bins, lengths, room)
        lines.append(f"packing   {len(bins):,} rows of at most {room:,} tokens, {full:.1%} full")
    how = "found in the cache" if prepared.from_cache else f"prepared in {human_seconds(seconds)}"
    return [*lines, f"where     {prepared.path} ({how})"]


def run(config: Config, cache: Path, console: Console, vision: bool | None = None) -> None:
    """Prepare the data of ``config`` and print a summary. Raises PacelineError."""
    seed = config.training.seed if config.data.seed is None else config.data.seed
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    started = time.monotonic()
    with written_for(cache, config.training.output_access), Bar(console) as bar:
        prepared = prepare(
            config.data,
            config.model,
            seed=seed,
            cache_dir=cache,
            report=bar,
            kind=kind,
            vision=vision,
        )
    for note in prepared.notes:
        print(note.render())
    for line in summary(
        prepared,
        kind,
        seq_len=config.data.max_length,
        packing=config.data.packing,
        seed=config.training.seed if config.training.data_seed is None else config.training.data_seed,
        seconds=time.monotonic() - started,
    ):
        print(line)


def read_config(arguments: argparse.Namespace) -> Config:
    """Read the config from a plan or a config file (JSON). Raises ConfigError."""
    file = Path(arguments.plan or arguments.config_json)
    try:
        content: JsonObject = json.loads(file.read_text("utf-8"))
        described = as_object(content["config"]) if arguments.plan else content
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            codes.DATA_BAD_INPUT_FILE(
                "the plan cannot be read" if arguments.plan else "the config cannot be read",
                str(file),
                f"{type(exc).__name__}: {exc}",
                "the file that Paceline wrote",
            )
        ) from exc
    return Config.from_json(described)


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the preparation; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.data.prepare.main",
        description="Tokenise and store the data of a config or plan.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--plan", help="plan.json")
    source.add_argument("--config-json", help="the effective config as JSON")
    parser.add_argument(
        "--cache", help="where prepared data is kept [data.cache_dir, else ~/.cache/paceline]"
    )
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments)
        cache = Path(arguments.cache or config.data.cache_dir or "~/.cache/paceline").expanduser()
        run(config, cache, Console(file=terminal(sys.stdout)))
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
