#!/usr/bin/env python
"""Run axolotl on FOLDER/given.yaml: `axolotl_losses.py FOLDER` prints its losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Train as `axolotl train` does, and print the logged losses as JSON."""
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets, load_preference_datasets
    from axolotl.train import train

    cfg = load_cfg(str(Path(sys.argv[1]) / "given.yaml"))
    rows = (load_preference_datasets if cfg.rl else load_datasets)(cfg=cfg)
    _, _, trainer = train(cfg=cfg, dataset_meta=rows)
    print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main()
