"""Steps shared by all demos: a free directory, `paceline` commands in sequence, reports of failures.

Demos of preferences and rewards start at the SFT demo's checkpoint nearest to 40 % exact match.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.demo import codes
from paceline.demo.files import HELD_OUT_QUESTIONS, Material, make_material
from paceline.demo.questions import held_out
from paceline.demo.report import read_answers, shown
from paceline.launch.process_spec import module_argv


def free_directory(wanted: Path | None, default: Path, console: Console) -> RunDir:
    """Return the directory to use: the given one if free.

    Else the default, numbered if an earlier demo exists.
    """
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigError(codes.DEMO_NOT_EMPTY(str(wanted)))
        return RunDir.at(wanted)
    candidates = (default if n == 1 else default.with_name(f"{default.name}-{n}") for n in range(1, 10_000))
    chosen = next(c for c in candidates if not c.exists())
    if chosen != default:
        console.print(f"{default} contains an earlier demo; this one is written to {chosen}.")
    return RunDir.at(chosen)


def not_writable(path: Path, error: OSError) -> ConfigError:
    """Return the error that the demo's files cannot be written."""
    return ConfigError(codes.DEMO_NOT_WRITABLE(str(path), str(error.strerror or error)))


def paceline(*words: str) -> list[str]:
    """Return the command line of a verb with this interpreter."""
    return module_argv("paceline.cli.main", *words)


def answering(run: RunDir, questions: Path, *, initial: bool, max_new_tokens: int = 12) -> list[str]:
    """Return the command line that asks every checkpoint of ``run`` (and the initial model) the questions."""
    argv = module_argv("paceline.training.exact_match", str(run.root), "--questions", str(questions))
    return [*argv, "--max-new-tokens", str(max_new_tokens), *(["--initial"] if initial else [])]


def output_of(step: str, argv: Sequence[str]) -> str:
    """Run a command and return its standard output. Raises PacelineError."""
    done = subprocess.run(list(argv), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Stopped(done.returncode, codes.DEMO_STEP_FAILED(detail=step, returncode=done.returncode))
    return done.stdout


def timed(console: Console, step: str, argv: Sequence[str], *, quiet: bool = False) -> float:
    """Run a command and return its seconds; ``quiet``: print its output only if it fails.

    Raises PacelineError.
    """
    started = time.monotonic()
    child = subprocess.Popen(
        list(argv),
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    try:
        output, _ = child.communicate()
    except KeyboardInterrupt:  # the child got it too: let it save and exit
        child.wait()
        raise
    if child.returncode:
        if output:
            console.print(output, highlight=False, markup=False)
        raise Stopped(child.returncode, codes.DEMO_STEP_FAILED(detail=step, returncode=child.returncode))
    return time.monotonic() - started


class Stopped(PacelineError):
    """A step of the demo failed; its exit code becomes the demo's."""

    def __init__(self, code: int, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.exit_code = code if code > 0 else 128 - code  # type: ignore[assignment]


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
    export = paceline("export", str(run.checkpoint(step)), "--to", str(model))
    seconds["export"] = timed(console, "Export", export, quiet=True)
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
        raise not_writable(run.root, error) from error
    console.print(
        f"First {STEPS} supervised steps from scratch, for a model that is right now and then …",
        highlight=False,
    )
    argv = paceline("train", str(material.yaml), "--nproc", str(options.nproc))
    timed(console, "Supervised training", argv, quiet=True)
    timed(console, "Answering", answering(run, material.held_out, initial=False), quiet=True)
    seconds["SFT"] = time.monotonic() - begun
    return run, material, nearest(read_answers(run))
