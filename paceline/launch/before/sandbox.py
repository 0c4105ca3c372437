"""Whether model-written programs can be sandboxed on this machine, tried in a child process."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from paceline.core.secret_values import without_secrets

if TYPE_CHECKING:
    from paceline.config.schema import Config

SECONDS = 60.0


def code_sandbox(config: Config) -> str | None:
    """Return why the sandbox cannot be used: empty if it can, None if this config runs no programs."""
    from paceline.launch.spec import import_path, module_argv

    rollout = config.training.rollout
    if rollout is None or not rollout.allow_code_execution or all(r.name != "code" for r in rollout.rewards):
        return None
    try:
        done = subprocess.run(
            module_argv("paceline.algorithms.rewards.sandbox"),
            env=without_secrets({**os.environ, **import_path(os.environ)}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return str(json.loads(done.stdout)["refused"])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"the sandbox could not be tested: {error}"
