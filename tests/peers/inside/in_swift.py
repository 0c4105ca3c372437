"""ms-swift 4.6.0 in its own environment: what it resolves, tokenizes and computes of a command's words."""

from __future__ import annotations

import os
import sys
from typing import Any
from unittest.mock import MagicMock

import children


def arguments(given: list[str], folder: str) -> dict[str, object]:
    """Return its arguments as it resolves them before it trains, its trainer's as ``training``."""
    from swift.arguments import PretrainArguments, RLHFArguments, SftArguments
    from swift.utils import parse_args

    classes = {"sft": SftArguments, "pt": PretrainArguments, "rlhf": RLHFArguments}
    name, *words = given
    more = ["--use_cpu", "true", "--add_version", "false", "--output_dir", folder]
    parsed, left = parse_args(classes[name], [*words, *more])
    training = children.fields(parsed.training_args)
    return {**children.fields(parsed), "training": training, "left": left}


def losses(given: list[str], folder: str) -> list[float]:
    """Train as `swift` does; return the logged losses."""
    made = _pipeline(given, folder)
    kept: list[Any] = []
    train = made.train

    def noted(trainer: Any) -> Any:
        kept.append(trainer)
        return train(trainer)

    made.train = noted
    made.main()
    return children.losses_of(kept[0].state.log_history)


def tokens(given: list[str], folder: str) -> list[dict[str, object]]:
    """Return the columns of its training rows."""
    made = _pipeline(given, folder)
    rows, _ = made._prepare_dataset()
    return [{key: children.plain(value) for key, value in row.items()} for row in rows]


def _pipeline(given: list[str], folder: str) -> Any:
    from swift.pipelines import train
    from transformers import TrainingArguments

    # without a network it cannot clone the sources of its Muon, and 4.6.0 has no argument for their place
    TrainingArguments.local_repo_path = f"{os.environ['PACELINE_SOURCES']}/Moonlight"
    sys.modules["loguru"] = MagicMock()  # by which they log
    classes = {"sft": train.SwiftSft, "pt": train.SwiftPretrain, "rlhf": train.SwiftRLHF}
    name, *words = given
    more = ["--use_cpu", "true", "--add_version", "false", "--output_dir", folder]
    return classes[name]([*words, *more])


if __name__ == "__main__":
    import swift.arguments  # noqa: F401 - once, before the children

    children.answer(arguments=arguments, tokens=tokens, losses=losses)
