"""dstack 0.22.5 in its own environment: the task that it reads."""

from __future__ import annotations

import json
from typing import Any

import children
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.models.runs import RunStatus
from dstack._internal.utils.interpolator import VariablesInterpolator


def task(text: str, folder: str) -> dict[str, Any]:
    """Return what dstack makes of a task file; ``env`` with its secrets filled in, as its server does."""
    read = parse_apply_configuration(yaml.safe_load(text))
    fill = VariablesInterpolator({"secrets": {"hub": "value of hub"}}).interpolate_or_error
    env = {key: fill(value) for key, value in read.env.items() if isinstance(value, str)}
    found: dict[str, Any] = {**json.loads(read.model_dump_json()), "env": env}
    return found


def statuses(asked: str, folder: str) -> dict[str, bool]:
    """Return each status, and whether a run ends with it."""
    return {status.value: status.is_finished() for status in RunStatus}


if __name__ == "__main__":
    children.answer(task=task, statuses=statuses)
