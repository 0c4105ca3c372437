"""The effective config as the text of another system's file."""

from __future__ import annotations

import json

from paceline.config import codes
from paceline.config.exchange.compose import scalar
from paceline.config.exchange.export_job import accelerate_yaml, deepspeed_json
from paceline.config.exchange.export_names import NAMES
from paceline.config.exchange.exporting import export_config
from paceline.config.load import Loaded
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json


def export_text(loaded: Loaded, system: str) -> str:
    """Return the file for ``system``. Raises ConfigError for an unknown one."""
    if system in NAMES:
        return export_config(loaded, system).text()
    if system == "deepspeed":
        return json.dumps(deepspeed_json(loaded.config), indent=2) + "\n"
    if system == "accelerate":
        return "".join(_lines(key, value) for key, value in accelerate_yaml(loaded.config).items())
    known = ", ".join((*NAMES, "accelerate", "deepspeed"))
    raise ConfigError(codes.CONFIG_EXPORT("there is no such system", "--to", system, f"one of: {known}"))


def _lines(key: str, value: Json) -> str:
    if isinstance(value, dict):
        return f"{key}:\n" + "".join(f"  {inner}: {scalar(item)}\n" for inner, item in value.items())
    return f"{key}: {scalar(value)}\n"
