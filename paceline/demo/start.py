"""Starting point of preference and reward demos: the SFT demo's checkpoint nearest to 40 % exact match."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.core.rundir import RunDir
from paceline.demo import steps
from paceline.demo.files import HELD_OUT_QUESTIONS, Material, make_material
from paceline.demo.questions import held_out
from paceline.demo.report import read_answers, shown

HALF_WAY = 0.40  # right often enough to be rewarded, wrong often enough to learn
NEAR = 0.05  # maximum distance of a finished demo's checkpoint from it; else a new one is trained
STEPS, SAVE_STEPS = 100, 5  # the first quarter of an SFT demo reaches it; saved often
SCHEDULE = "constant_with_warmup"  # the SFT demo's own has hardly decayed by then


@dataclass(frozen=True)
class HalfWay:
    """A half-trained model.

    material     its training questions, and the held-out ones
    model        the checkpoint as a Hugging Face folder
    exact_match  its share of right answers to the held-out questions
    seconds      time spent on it here, by step of the demo
    """

    material: Material
    model: Path
    exact_match: float
    seconds: dict[str, float]


def half_way(options: argparse.Namespace, console: Console, root: Path) -> HalfWay:
    """Find the checkpoint in a finished SFT demo next to ``root``, or train a short one into ``root/sft``.

    It is exported to ``root/start``.
    """
    seconds: dict[str, float] = {}
    demo = finished_nearby(root.parent, options.seed)
    run, material, answers = demo or _train(options, console, RunDir.at(root / "sft"), seconds)
    step, exact = int(answers["step"]), float(answers["exact_match"])
    console.print(
        f"The start is step {step} of the SFT demo in {shown(run.root)}: it answers {exact:.1%} of the"
        " held-out questions.\n",
        highlight=False,
    )
    model = root / "start"
    export = steps.paceline("export", str(run.checkpoint(step)), "--to", str(model))
    seconds["export"] = steps.timed(console, "Export", export, quiet=True)
    return HalfWay(material, model, exact, seconds)


ScoredDemo = tuple[RunDir, Material, dict[str, Any]]


def finished_nearby(parent: Path, seed: int) -> ScoredDemo | None:
    """Return the best checkpoint of finished SFT demos in ``parent`` with ``seed``'s questions.

    None if none is close.
    """
    folders = [*sorted(parent.glob("demo*")), *sorted(parent.glob("demo*/sft"))] if parent.is_dir() else []
    demos = [demo for folder in folders if (demo := _finished(RunDir.at(folder), seed)) is not None]
    best = min(demos, key=lambda demo: _distance(demo[2]), default=None)
    return best if best is not None and _distance(best[2]) <= NEAR else None


def nearest(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the evaluation whose exact match is closest to the target."""
    return min(answers, key=_distance)


def _distance(answers: dict[str, Any]) -> float:
    return abs(float(answers["exact_match"]) - HALF_WAY)


def _finished(run: RunDir, seed: int) -> ScoredDemo | None:
    """Return a scored demo with ``seed``'s questions that still has the checkpoint, else None."""
    material = Material(run.root / "material", tuple(held_out(seed, HELD_OUT_QUESTIONS)))
    if not run.answers_json.is_file() or not material.is_whole():
        return None
    trained = [a for a in read_answers(run) if run.checkpoint(int(a["step"])).is_dir()]
    return (run, material, nearest(trained)) if trained else None


def _train(
    options: argparse.Namespace, console: Console, run: RunDir, seconds: dict[str, float]
) -> ScoredDemo:
    begun = time.monotonic()
    try:
        material = make_material(
            run.root, seed=options.seed, steps=STEPS, save_steps=SAVE_STEPS, schedule=SCHEDULE
        )
    except OSError as error:
        raise steps.not_writable(run.root, error) from error
    console.print(
        f"First {STEPS} supervised steps from scratch, for a model that is right now and then …",
        highlight=False,
    )
    argv = steps.paceline("train", str(material.yaml), "--nproc", str(options.nproc))
    steps.timed(console, "Supervised training", argv, quiet=True)
    steps.timed(console, "Answering", steps.answering(run, material.held_out, initial=False), quiet=True)
    seconds["SFT"] = time.monotonic() - begun
    return run, material, nearest(read_answers(run))
