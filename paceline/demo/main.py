"""The demo: make data, train on two processes through ``paceline train``, show what was learned.

``paceline demo [--algorithm sft|dpo|reward|vision] [--to DIR]``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from paceline.core.errors import ConfigError, ExitCode
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.demo import codes, steps
from paceline.demo.files import STEPS, make_material
from paceline.demo.recipes import RECIPES, AlgorithmDemo
from paceline.demo.report import (
    GOAL,
    read_answers,
    show_answers,
    shown,
    speed,
    table_of,
    times,
    verdict,
    where_and_next,
    write_numbers,
)
from paceline.demo.steps import half_way
from paceline.demo.vision import NAME as VISION
from paceline.demo.vision import demo_vision
from paceline.launch.program import program, terminal
from paceline.plan.algorithms.supervised import SFT

DEFAULT = Path("outputs/demo")
PICTURES = (VISION,)
ALGORITHMS = (SFT.name, *RECIPES, *PICTURES)


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 if the goal was reached."""
    options = argument_parser().parse_args(None if argv is None else list(argv))
    console = Console(file=terminal(sys.stdout))
    try:
        with written_for((options.to or DEFAULT).absolute()):
            return demo(options, console)
    except KeyboardInterrupt:
        print("\nThe demo was stopped; everything written so far is kept.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline demo",
        description="Train a small model from scratch on two processes and see what it has learnt.",
    )
    parser.add_argument(
        "--algorithm",
        default="sft",
        choices=ALGORITHMS,
        help="sft from scratch (default), or vision: pictures, from scratch; the others start from sft's"
        " checkpoint nearest to 40 %% exact match",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"the directory to create (default: {DEFAULT}, or {DEFAULT}-ALGORITHM, or the next free name)",
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the questions and of training")
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help=f"optimizer steps (default: as many as needed to reach the goal, {STEPS} for sft)",
    )
    parser.add_argument("--nproc", type=int, default=2, help="processes (default: 2)")
    return parser


def demo(options: argparse.Namespace, console: Console) -> int:
    """Run the full demo, step by step."""
    if (options.steps is not None and options.steps < 3) or options.nproc < 1:
        raise ConfigError(codes.DEMO_OPTIONS("", f"--steps {options.steps} --nproc {options.nproc}"))
    recipe, of_pictures = RECIPES.get(options.algorithm), options.algorithm in PICTURES
    if recipe is None and not of_pictures:
        return demo_sft(options, console, steps.free_directory(options.to, DEFAULT, console))
    default = DEFAULT.with_name(f"{DEFAULT.name}-{options.algorithm}")
    root = steps.free_directory(options.to, default, console).root
    return (
        demo_vision(options, console, root)
        if recipe is None
        else demo_further(recipe, options, console, root)
    )


def demo_sft(options: argparse.Namespace, console: Console, run: RunDir) -> int:
    """Make data, train, ask the held-out questions, show what was learned; return the exit code."""
    started, count = time.monotonic(), options.steps or STEPS
    try:
        material = make_material(run.root, seed=options.seed, steps=count)
    except OSError as error:
        raise steps.not_writable(run.root, error) from error
    train = len(material.train.read_text(encoding="utf-8").splitlines())
    console.print(
        f"A Llama with 0.4 M parameters learns letter puzzles from scratch: {train:,} questions to"
        f" train on, {len(material.questions)} others to test it (about words that do not occur in"
        f" the first). {options.nproc} processes, {count} steps. Everything is written to {run.root}.\n",
        highlight=False,
    )
    seconds = {"data": time.monotonic() - started}
    words = "\nAsking the held-out questions, before training and at every checkpoint …"
    _train_and_answer(options, console, run, material.yaml, seconds, material.held_out, words)
    answers = read_answers(run)
    show_answers(console, answers, [question.kind for question in material.questions])
    console.print(speed(run) + times(seconds), highlight=False)
    where_and_next(console, run, material)
    exact = float(answers[-1]["exact_match"])
    if exact >= GOAL:
        console.print(
            f"\n[bold green]The model answers {exact:.1%} of questions it has never seen.[/bold green]"
        )
        return int(ExitCode.OK)
    if count < STEPS:
        console.print(f"\n{exact:.1%} exact match after only {count} of {STEPS} steps.", highlight=False)
        return int(ExitCode.OK)
    print(f"The demo did not reach its goal: {exact:.1%} exact match, {GOAL:.0%} expected.", file=sys.stderr)
    return int(ExitCode.FAILED)


def demo_further(recipe: AlgorithmDemo, options: argparse.Namespace, console: Console, root: Path) -> int:
    """Run ``recipe`` from the half-trained model, with all files below ``root``; return the exit code."""
    count, start = options.steps or recipe.steps, half_way(options, console, root)
    run, yaml = RunDir.at(root / recipe.algorithm), root / f"{recipe.algorithm}.yaml"
    try:
        root.mkdir(parents=True, exist_ok=True)
        recipe.lay(root, start, options.seed)
        yaml.write_text(recipe.yaml(root, start, options.seed, count, options.nproc), encoding="utf-8")
    except OSError as error:
        raise steps.not_writable(root, error) from error
    console.print(
        f"{recipe.words} {count} steps on {options.nproc} processes.\n", highlight=False, soft_wrap=True
    )
    seconds = dict(start.seconds)
    questions = start.material.held_out if recipe.has_questions else None
    _train_and_answer(options, console, run, yaml, seconds, questions)
    numbers, file = recipe.measure(run), root / "numbers.json"
    write_numbers(file, recipe.algorithm, numbers, seconds)
    console.print()
    if recipe.has_questions:
        show_answers(console, read_answers(run), [question.kind for question in start.material.questions])
    console.print(table_of(numbers))
    console.print(times(seconds), highlight=False)
    again = f"paceline train {shown(yaml)} training.output_dir=outputs/mine training.learning_rate=1e-4"
    files = {"plot": run.plot_png, "numbers": file, "run": run.root, "config": yaml}
    lines = ["", *(f"  {name:<8} {shown(path)}" for name, path in files.items()), f"  {'again':<8} {again}"]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return verdict(console, numbers, shortened=count < recipe.steps)


def _train_and_answer(
    options: argparse.Namespace,
    console: Console,
    run: RunDir,
    yaml: Path,
    seconds: dict[str, float],
    questions: Path | None,
    words: str = "",
) -> None:
    """Train, have every checkpoint answer ``questions`` (first saying ``words``), and draw the plot.

    The time of each goes into ``seconds``.
    """
    train = steps.paceline("train", str(yaml), "--nproc", str(options.nproc))
    seconds["training"] = steps.timed(console, "Training", train)
    if questions is not None:
        if words:
            console.print(words)
        answering = steps.answering(run, questions, initial=True)
        seconds["answers"] = steps.timed(console, "Answering", answering, quiet=True)
    plot = steps.paceline("plot", str(run.root))
    seconds["plot"] = steps.timed(console, "Drawing the plot", plot, quiet=True)


if __name__ == "__main__":
    sys.exit(main())
