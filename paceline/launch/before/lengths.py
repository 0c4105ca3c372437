"""Rows and tokens per epoch, read from prepared data in a subprocess, as it needs array libraries."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.secret_values import without_secrets

SECONDS = 20.0  # time limit: a plan does not wait longer


def epoch_lengths(config: Config) -> tuple[int, int] | None:
    """Return (rows, tokens) of an epoch of this config's data; None if not prepared or not readable."""
    from paceline.launch.environ import cache_folder
    from paceline.launch.spec import import_path, module_argv
    from paceline.plan.algorithms.base import algorithm_spec

    tokenizer = config.model.tokenizer or config.model.name_or_path
    measured = algorithm_spec(config.training.algorithm).measured
    if not measured or not tokenizer or not Path(tokenizer).expanduser().is_dir():
        return None  # the subprocess would find the same, a second later
    cache = Path(config.data.cache_dir or cache_folder(os.environ)).expanduser()
    if not (cache / "prepared").is_dir():
        return None
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described = Path(folder) / "config.json"
        described.write_text(json.dumps(config.to_json()), encoding="utf-8")
        argv = module_argv("paceline.data.lengths", "--config-json", str(described), "--cache", str(cache))
        try:
            environ = without_secrets({**os.environ, **import_path(os.environ)})
            done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=SECONDS)
            found = json.loads(done.stdout) if done.returncode == 0 else None
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
    return (int(found["rows"]), int(found["tokens"])) if found else None
