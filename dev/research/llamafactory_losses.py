#!/usr/bin/env python
"""Run LLaMA-Factory on the keys in FOLDER/given.json: `llamafactory_losses.py FOLDER` prints its losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Train as `llamafactory-cli train` does, and print the logged losses as JSON."""
    given = json.loads((Path(sys.argv[1]) / "given.json").read_text())
    from llamafactory.train.tuner import run_exp

    run_exp(args=given)
    state = json.loads((Path(given["output_dir"]) / "trainer_state.json").read_text())
    print(json.dumps([entry["loss"] for entry in state["log_history"] if "loss" in entry]))


if __name__ == "__main__":
    main()
