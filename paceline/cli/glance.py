"""What preparation would refuse of the first rows, asked of another process: rows are read where arrays may be."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.secret_values import without_secrets

if TYPE_CHECKING:
    from paceline.config.schema import Config

SECONDS = 20.0


def first_rows(config: Config) -> list[Diagnostic]:
    """Findings about the first rows of the files that are here; a note where they could not be looked at."""
    from paceline.cli.process import module_argv
    from paceline.launch.spec import import_path

    if not any(Path(s.path).expanduser().is_file() for s in (*config.data.train, *(config.data.eval or ()))):
        return []
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        described = Path(folder) / "config.json"
        described.write_text(json.dumps(config.to_json()), encoding="utf-8")
        argv = module_argv("paceline.data.glance", "--config-json", str(described))
        environ = without_secrets({**os.environ, **import_path(os.environ)})
        try:
            done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=SECONDS)
            if done.returncode == 0:
                return [Diagnostic.from_json(finding) for finding in json.loads(done.stdout)]
            why = done.stderr.strip()[-300:]
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            why = str(error)
    what = "the first rows of the data were not looked at; preparation will"
    return [Diagnostic("data.not_looked_at", what, "data.train", why, severity=Severity.NOTE)]
