"""What a model's own ``config.json`` decides: its dtype, its length, and the modules that peft chooses."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.key_reader import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject, as_object


def config_of(reading: KeyReader) -> JsonObject:
    """Return the ``config.json`` of a model that is a folder here, or beside the file; else empty."""
    name = str(reading.given.get("model") or reading.given.get("model_name_or_path") or "")
    for base in (Path("."), Path(reading.result.file).parent):
        file = base / name / "config.json"
        if name and file.is_file():
            try:
                return as_object(json.loads(read_text(str(file))))
            except (ValueError, ConfigError):
                return {}
    return {}


def peft_targets(reading: KeyReader) -> None:
    """Set the modules that peft chooses where a file names none."""
    key, kind = "lora_target_modules", str(config_of(reading).get("model_type") or "")
    targets = as_object(table("peft")["targets"])
    if kind in targets:
        reading.set(
            "lora.target_modules",
            targets[kind],
            key,
            f"peft's choice for {kind or 'most models'} where {key} is empty",
        )
    else:
        reading.lose(key, f"peft refuses {kind} without them: name the modules (all-linear: every layer's)")
