"""``paceline demo [--algorithm sft] [--to DIR]``: make data, train on two processes through ``paceline train``, show what was learnt."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.rundir import RunDir
from paceline.demo.files import STEPS, Material, make_material
from paceline.demo.report import GOAL, show, where_and_next

DEFAULT = Path("outputs/demo")
ALGORITHMS = ("sft",)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 when the goal was reached."""
    options = _parser().parse_args(None if argv is None else list(argv))
    console = Console()
    try:
        return demo(options, console)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("\nThe demo was stopped; what it had made so far is kept.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline demo", description="Train a small model from scratch on two processes and see what it learnt."
    )
    parser.add_argument("--algorithm", default="sft", choices=ALGORITHMS)
    parser.add_argument(
        "--to",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"the run directory to make (default: {DEFAULT}, or the next free name)",
    )
    parser.add_argument("--seed", type=int, default=42, help="of the questions and of the training")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help=f"optimizer steps (default: {STEPS}); fewer than that will not reach the goal",
    )
    parser.add_argument("--nproc", type=int, default=2, help="processes (default: 2)")
    return parser


def demo(options: argparse.Namespace, console: Console) -> int:
    """The whole demo, step by step."""
    if options.steps < 3 or options.nproc < 1:
        raise ConfigError(
            Diagnostic(
                "demo.options",
                "the demo needs at least 3 steps and 1 process",
                "",
                f"--steps {options.steps} --nproc {options.nproc}",
                "--steps 400 --nproc 2",
            )
        )
    run = free_directory(options.to, console)
    started = time.monotonic()
    try:
        material = make_material(run.root, seed=options.seed, steps=options.steps)
    except OSError as error:
        raise ConfigError(
            Diagnostic(
                "demo.not_writable",
                "the demo's files cannot be written",
                str(run.root),
                str(error.strerror or error),
                "paceline demo --to DIR, a place you may write to",
            )
        ) from error
    introduce(console, run, material, options)
    seconds = {"data": time.monotonic() - started}
    seconds["training"] = timed(
        console, "Training", [*paceline("train"), str(material.yaml), "--nproc", str(options.nproc)]
    )
    console.print("\nAsking the held-out questions, before training and at every checkpoint …")
    questions = ["--questions", str(material.held_out), "--initial", "--max-new-tokens", "12"]
    seconds["answers"] = timed(
        console, "Answering", [sys.executable, "-m", "paceline.training.answers", str(run.root), *questions], quiet=True
    )
    seconds["plot"] = timed(console, "Drawing the plot", [*paceline("plot"), str(run.root)], quiet=True)
    exact = show(console, run, material, seconds)
    where_and_next(console, run, material)
    return verdict(console, exact, options.steps)


def free_directory(wanted: Path | None, console: Console) -> RunDir:
    """The directory to use: the one named, if free; else the default, or the next number when an earlier demo lies there."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigError(
                Diagnostic(
                    "demo.not_empty",
                    "this directory is not empty; the demo overwrites nothing",
                    str(wanted),
                    hint="--to NEW_DIR, or no --to for the next free name",
                )
            )
        return RunDir.at(wanted)
    candidates = (DEFAULT if n == 1 else DEFAULT.with_name(f"{DEFAULT.name}-{n}") for n in range(1, 10_000))
    chosen = next(c for c in candidates if not c.exists())
    if chosen != DEFAULT:
        console.print(f"{DEFAULT} holds an earlier demo; this one goes to {chosen}.")
    return RunDir.at(chosen)


def introduce(console: Console, run: RunDir, material: Material, options: argparse.Namespace) -> None:
    """What is about to happen."""
    train = len(material.train.read_text(encoding="utf-8").splitlines())
    console.print(
        f"A Llama of 0.4 M parameters learns letter puzzles from nothing: {train:,} questions to learn from, {len(material.asked)} others to be asked "
        f"(about words that occur in none of the first). {options.nproc} processes, {options.steps} steps. Everything goes to {run.root}.\n",
        highlight=False,
    )


def paceline(verb: str) -> list[str]:
    """The command line of a verb with this interpreter."""
    return [sys.executable, "-m", "paceline.cli.main", verb]


def timed(console: Console, what: str, argv: Sequence[str], *, quiet: bool = False) -> float:
    """Run a command to its end and return its seconds; ``quiet`` shows its output only when it fails. Raises PacelineError by name."""
    started = time.monotonic()
    child = subprocess.Popen(
        list(argv), stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None, text=True
    )
    try:
        output, _ = child.communicate()
    except KeyboardInterrupt:  # the child has it too: let it save and end
        child.wait()
        raise
    if child.returncode:
        if output:
            console.print(output, highlight=False, markup=False)
        raise Stopped(
            child.returncode,
            Diagnostic(
                "demo.step_failed",
                f"{what} ended with exit code {child.returncode}; the reason stands above",
                hint="`paceline explain CODE` tells more about a code",
            ),
        )
    return time.monotonic() - started


class Stopped(PacelineError):
    """A step of the demo failed; its exit code is the demo's."""

    def __init__(self, code: int, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.exit_code = code if code > 0 else 128 - code  # type: ignore[assignment]


def verdict(console: Console, exact: float, steps: int) -> int:
    """Say whether the goal was reached."""
    if exact >= GOAL:
        console.print(f"\n[bold green]The model answers {exact:.1%} of questions it has never seen.[/bold green]")
        return int(ExitCode.OK)
    if steps < STEPS:
        console.print(f"\n{exact:.1%} exact match after only {steps} of {STEPS} steps.", highlight=False)
        return int(ExitCode.OK)
    print(f"The demo did not reach its goal: {exact:.1%} exact match, {GOAL:.0%} expected.", file=sys.stderr)
    return int(ExitCode.FAILED)


if __name__ == "__main__":
    sys.exit(main())
