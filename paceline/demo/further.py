"""Demos that continue from the SFT demo's half-trained model, with preferences or rewards."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.core.rundir import RunDir
from paceline.core.units import human_seconds
from paceline.demo.numbers import Number, table_of, verdict, write_numbers
from paceline.demo.report import answers_table, numbers_table, read_answers, shown
from paceline.demo.start import HalfWay, half_way
from paceline.demo.steps import answering, not_writable, paceline, timed

Yaml = Callable[[Path, RunDir, HalfWay, int, int, int], str]
Measure = Callable[[RunDir, HalfWay], list[Number]]


@dataclass(frozen=True)
class AlgorithmDemo:
    """The parts of one algorithm's demo.

    words    what is about to happen, for people
    steps    optimizer steps that reach the goal
    lay      writes the data that the YAML reads, below the demo's folder
    yaml     (the demo's folder, the run directory, start, seed, steps, processes) -> the config
    measure  the numbers of the finished run
    asks     whether every checkpoint answers the held-out questions before that
    """

    algorithm: str
    words: str
    steps: int
    lay: Callable[[Path, HalfWay, int], None]
    yaml: Yaml
    measure: Measure
    asks_questions: bool = True


def demo_further(recipe: AlgorithmDemo, options: argparse.Namespace, console: Console, root: Path) -> int:
    """Run ``recipe`` from the half-trained model, with all files below ``root``; return the exit code."""
    steps = options.steps or recipe.steps
    start = half_way(options, console, root)
    run, yaml = RunDir.at(root / recipe.algorithm), root / f"{recipe.algorithm}.yaml"
    try:
        root.mkdir(parents=True, exist_ok=True)
        recipe.lay(root, start, options.seed)
        yaml.write_text(recipe.yaml(root, run, start, options.seed, steps, options.nproc), encoding="utf-8")
    except OSError as error:
        raise not_writable(root, error) from error
    console.print(
        f"{recipe.words} {steps} steps on {options.nproc} processes.\n", highlight=False, soft_wrap=True
    )
    seconds = dict(start.seconds)
    train = [*paceline("train"), str(yaml), "--nproc", str(options.nproc)]
    seconds["training"] = timed(console, "Training", train)
    if recipe.asks_questions:
        ask_questions = answering(run, start.material.held_out, initial=True)
        seconds["answers"] = timed(console, "Answering", ask_questions, quiet=True)
    seconds["plot"] = timed(console, "Drawing the plot", [*paceline("plot"), str(run.root)], quiet=True)
    numbers = recipe.measure(run, start)
    write_numbers(root / "numbers.json", recipe.algorithm, numbers, seconds)
    _show(console, root, run, yaml, start, numbers, seconds, recipe.asks_questions)
    return verdict(console, numbers, shortened=steps < recipe.steps)


def _show(
    console: Console,
    root: Path,
    run: RunDir,
    yaml: Path,
    start: HalfWay,
    numbers: list[Number],
    seconds: dict[str, float],
    with_questions: bool,
) -> None:
    """Print the tables, the times, and where the files are."""
    console.print()
    if with_questions:
        answers = read_answers(run)
        before, after = answers[0], answers[-1]
        console.print(numbers_table(before, after, [q.kind for q in start.material.questions]))
        console.print(answers_table(before["rows"], after["rows"]))
        way = "  ".join(f"{a['step']}: {a['exact_match']:.0%}" for a in answers)
        console.print(f"Exact match during training:  {way}", highlight=False)
    console.print(table_of(numbers))
    spent = ", ".join(f"{name} {human_seconds(value)}" for name, value in seconds.items())
    console.print(f"{spent}; {human_seconds(sum(seconds.values()))} in total", highlight=False)
    again = f"paceline train {shown(yaml)} training.output_dir=outputs/mine training.learning_rate=1e-4"
    places = {"plot": run.plot_png, "numbers": root / "numbers.json", "run": run.root, "config": yaml}
    lines = ["", *(f"  {name:<8} {shown(path)}" for name, path in places.items()), f"  {'again':<8} {again}"]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
