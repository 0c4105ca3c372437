"""Sampling settings of answers: a run's ``generation:`` section, overridden by the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from paceline.config.sections.rollout import GenerationSection
from paceline.core.errors import ConfigError
from paceline.core.files import read_run_file
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.generation import codes
from paceline.generation.answer import Sampling


def sampling_of(path: Path, options: Mapping[str, float | None]) -> Sampling:
    """Return the settings: ``options``, else the run's at ``path``, else the defaults.

    Raises ConfigError.
    """
    run = run_of(path)
    stored = {} if run is None else as_object(stored_config(run).get("generation"))
    # Only what the command line names: the rest stays the run's.
    requested = {name: value for name, value in options.items() if value is not None}
    try:
        chosen = GenerationSection.model_validate({**stored, **requested})
    except ValidationError as error:
        option, message = ".".join(map(str, error.errors()[0]["loc"])), str(error.errors()[0]["msg"])
        where = (
            f"--{option.replace('_', '-')}"
            if option in requested
            else f"{run.config_json if run else path}: generation.{option}"
        )
        raise ConfigError(
            codes.GENERATION_OPTIONS(
                f"{option}: {message[:1].lower()}{message[1:]}",
                where,
                str({**stored, **requested}.get(option)),
                "e.g. --max-new-tokens 128 --temperature 0.7 --top-p 0.9 --top-k 50",
            )
        ) from error
    return Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_p, chosen.top_k)


def run_of(path: Path) -> RunDir | None:
    """Return the run at ``path``, or the run whose checkpoint it is; None for a Hugging Face folder."""
    path = path.expanduser().resolve()
    # A run lies at most two folders above one of its checkpoints
    runs = (RunDir.at(folder) for folder in (path, path.parent, path.parent.parent))
    return next((run for run in runs if run.plan_json.is_file() and run.config_json.is_file()), None)


def stored_config(run: RunDir) -> JsonObject:
    """Return the config that a run was started with. Raises ConfigError if it cannot be read."""
    try:
        config = json.loads(read_run_file(run.config_json))
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(codes.GENERATION_RUN_CONFIG(str(run.config_json), str(error))) from error
    return config
