"""Models by name, without a download: the built-in list of sizes."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.plan import codes
from paceline.plan.codec import from_json
from paceline.plan.model.read_shape import ModelShape, config_from_path, shape_from_config, trained_shape

_DECORATIONS = re.compile(r"^(meta|hf|deepseekr1distill)|(hf|base|instruct|chat|it|v01|v02)$")


@dataclass(frozen=True)
class KnownModel:
    """One of the list: its ``config.json``, and the published number of parameters."""

    config: Mapping[str, Any]
    parameters: int


@dataclass(frozen=True)
class _Table:
    note: str
    models: Mapping[str, KnownModel]


@cache
def known_models() -> Mapping[str, KnownModel]:
    """By name."""
    text = resources.files("paceline.plan").joinpath("data/models.json").read_text(encoding="utf-8")
    return from_json(_Table, json.loads(text)).models


def known_shape(name: str) -> ModelShape | None:
    """The shape of a model of the list by its name or a hub name (organisation, "-Instruct" and the like left aside); None when unknown."""
    model = _by_plain_name().get(_plain(name))
    return shape_from_config(model.config, name) if model else None


def model_shape(given: str) -> ModelShape:
    """The shape behind ``--model``: a folder or ``config.json``, else a name of the list. Raises ConfigError with the nearest names."""
    return trained_shape(named_config(given), given)


def named_config(given: str) -> Mapping[str, Any]:
    """The ``config.json`` behind ``--model``, as ``model_shape``."""
    path = Path(given).expanduser()
    if path.exists() or given.startswith(("/", "./", "../", "~")):
        return config_from_path(path)
    found = _by_plain_name().get(_plain(given))
    if found is not None:
        return found.config
    plain = {_plain(name): name for name in known_models()}
    near = difflib.get_close_matches(_plain(given), plain, n=4, cutoff=0.4) or ["llama38b", "qwen257b", "gpt2"]
    hint = f"nearest: {', '.join(plain[n] for n in near)}; or a folder with a config.json"
    raise ConfigError(codes.PLAN_MODEL_UNKNOWN("no model of this name is in the built-in list", "--model", given, hint))


@cache
def _by_plain_name() -> Mapping[str, KnownModel]:
    return {_plain(name): model for name, model in known_models().items()}


def _plain(name: str) -> str:
    """Letters and digits of the last part of a name, without what publishers add to it."""
    text = re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
    while (shorter := _DECORATIONS.sub("", text)) != text and shorter:
        text = shorter
    return text
