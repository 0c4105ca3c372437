"""The supervised fine-tuning demo: a model learns letter puzzles from scratch."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir
from paceline.demo.files import STEPS, Material, make_material
from paceline.demo.report import GOAL, show, where_and_next
from paceline.demo.steps import answering, not_writable, paceline, timed


def demo_sft(options: argparse.Namespace, console: Console, run: RunDir) -> int:
    """Make data, train, ask the held-out questions, show what was learned; return the exit code."""
    started = time.monotonic()
    try:
        material = make_material(run.root, seed=options.seed, steps=options.steps or STEPS)
    except OSError as error:
        raise not_writable(run.root, error) from error
    introduce(console, run, material, options)
    seconds = {"data": time.monotonic() - started}
    seconds["training"] = timed(
        console, "Training", [*paceline("train"), str(material.yaml), "--nproc", str(options.nproc)]
    )
    console.print("\nAsking the held-out questions, before training and at every checkpoint …")
    seconds["answers"] = timed(
        console, "Answering", answering(run, material.held_out, initial=True), quiet=True
    )
    seconds["plot"] = timed(console, "Drawing the plot", [*paceline("plot"), str(run.root)], quiet=True)
    exact = show(console, run, material, seconds)
    where_and_next(console, run, material)
    return verdict(console, exact, options.steps or STEPS)


def introduce(console: Console, run: RunDir, material: Material, options: argparse.Namespace) -> None:
    """Print what is about to happen."""
    train = len(material.train.read_text(encoding="utf-8").splitlines())
    console.print(
        f"A Llama with 0.4 M parameters learns letter puzzles from scratch: {train:,} questions to"
        f" train on, {len(material.questions)} others to test it (about words that do not occur in"
        f" the first). {options.nproc} processes, {options.steps or STEPS} steps. Everything is"
        f" written to {run.root}.\n",
        highlight=False,
    )


def verdict(console: Console, exact: float, steps: int) -> int:
    """Print whether the goal was reached; return the exit code."""
    if exact >= GOAL:
        console.print(
            f"\n[bold green]The model answers {exact:.1%} of questions it has never seen.[/bold green]"
        )
        return int(ExitCode.OK)
    if steps < STEPS:
        console.print(f"\n{exact:.1%} exact match after only {steps} of {STEPS} steps.", highlight=False)
        return int(ExitCode.OK)
    print(f"The demo did not reach its goal: {exact:.1%} exact match, {GOAL:.0%} expected.", file=sys.stderr)
    return int(ExitCode.FAILED)
