"""``python -m paceline.training.hand_over``: write the inputs of an exported config.

These are the rows of local data sets in the other program's format. A model from scratch adds its tokenizer
and the initial weights of this training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.config.schema import Config
from paceline.data.prepare.main import read_config
from paceline.data.tokenizer.load import load_tokenizer
from paceline.data.write_rows import write_rows
from paceline.launch.program import program
from paceline.models.factory import HFModelFactory


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Write the requested inputs, and print the rows' format as JSON."""
    parser = argparse.ArgumentParser(prog="python -m paceline.training.hand_over")
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--plan")
    parser.add_argument("--program", required=True)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args(argv)
    config = read_config(arguments)
    form = write_rows(config, arguments.program, arguments.rows) if arguments.rows else ""
    if arguments.model:
        write_first_weights(config, arguments.model)
    arguments.to.write_text(json.dumps({"form": form}), encoding="utf-8")
    return 0


def write_first_weights(config: Config, folder: Path) -> None:
    """Write the initial model of ``model.config`` for this seed."""
    tokenizer = load_tokenizer(config.model)
    build = HFModelFactory(config.model, vocab_size=len(tokenizer), seed=config.training.seed)
    build().hf.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))


if __name__ == "__main__":
    sys.exit(main())
