"""The demo: make data, train on two processes through ``paceline train``, show what was learned.

``paceline demo [--algorithm sft|dpo|reward] [--to DIR]``
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.security.file_permissions import written_for
from paceline.demo import codes
from paceline.demo.files import STEPS
from paceline.demo.further import AlgorithmDemo, demo_further
from paceline.demo.preferences import DPO, REWARD
from paceline.demo.rewards import GRPO, PPO
from paceline.demo.sft import demo_sft
from paceline.demo.steps import free_directory
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted, terminal
from paceline.plan.algorithms.supervised import SFT

DEFAULT = Path("outputs/demo")
RECIPES: Mapping[str, AlgorithmDemo] = {recipe.algorithm: recipe for recipe in (DPO, REWARD, GRPO, PPO)}
ALGORITHMS = (SFT.name, *RECIPES)


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 if the goal was reached."""
    options = argument_parser().parse_args(None if argv is None else list(argv))
    console = Console(file=terminal(sys.stdout))
    try:
        with written_for((options.to or DEFAULT).absolute()):
            return demo(options, console)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
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
        help="sft from scratch (default); the others start from its checkpoint nearest to 40 %% exact match",
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
    recipe = RECIPES.get(options.algorithm)
    if recipe is None:
        return demo_sft(options, console, free_directory(options.to, DEFAULT, console))
    default = DEFAULT.with_name(f"{DEFAULT.name}-{options.algorithm}")
    return demo_further(recipe, options, console, free_directory(options.to, default, console).root)


if __name__ == "__main__":
    sys.exit(main())
