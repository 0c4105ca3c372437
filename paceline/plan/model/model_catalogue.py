"""Models by name, without a download: the shipped list of model configs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.model.parameter_list import counted
from paceline.plan.model.read_config import config_from_path, shape_from_config, trained_shape
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan_json import shipped_table

#: What publishers add: their prefix, what it was trained for, the month of a release (2407)
_DECORATIONS = re.compile(
    r"^(meta|hf|c4ai|deepseekr1distill)|(hf|base|instruct|chat|it|v01|v02|2[456](?:0[1-9]|1[0-2]))$"
)


@dataclass(frozen=True)
class KnownModel:
    """A listed model: its ``config.json`` and the published number of parameters."""

    config: Mapping[str, Json]
    parameters: int


@dataclass(frozen=True)
class _ModelTable:
    models: Mapping[str, KnownModel]


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the listed models by name."""
    return shipped_table("models", _ModelTable).models


def known_shape(name: str) -> ModelShape | None:
    """Return the shape of a listed model by its name or hub name; None if unknown.

    The organisation and suffixes such as "-Instruct" are ignored.
    """
    model = _listed(name)
    return shape_from_config(model.config, name) if model else None


def model_shape(name: str, environ: Mapping[str, str] | None = None) -> ModelShape:
    """Return the shape for ``--model``: a folder, a ``config.json``, or a listed name.

    With ``environ``, its class is queried if no formula counts its parameters. Raises ConfigError with the
    nearest names.
    """
    config = named_config(name)
    shape = trained_shape(config, name)
    return shape if environ is None else counted(shape, config, environ)


def named_config(given: str) -> Mapping[str, Json]:
    """Return the ``config.json`` for ``--model``, found as by ``model_shape``."""
    path = Path(given).expanduser()
    if path.exists() or given.startswith(("/", "./", "../", "~")):
        return config_from_path(path)
    model = _listed(given)
    if model is not None:
        return model.config
    plain = {_plain(name): name for name in known_models()}
    near = difflib.get_close_matches(_plain(given), plain, n=4, cutoff=0.4) or [
        "llama38b",
        "qwen257b",
        "gpt2",
    ]
    raise ConfigError(codes.PLAN_MODEL_UNKNOWN("--model", given, near=", ".join(plain[n] for n in near)))


def _listed(name: str) -> KnownModel | None:
    """Return a listed model by its very name, else by the name without separators and additions."""
    last = name.rsplit("/", 1)[-1].lower()
    return known_models().get(last) or _by_plain_name().get(_plain(name))


@cache
def _by_plain_name() -> Mapping[str, KnownModel]:
    plain = [_plain(name) for name in known_models()]
    # opt-1.3b and opt-13b are alike without separators: neither is found so
    return {
        word: model
        for word, model in zip(plain, known_models().values(), strict=True)
        if plain.count(word) == 1
    }


def _plain(name: str) -> str:
    """Normalize a name: letters and digits of its last part, without publishers' additions."""
    text = re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
    while (shorter := _DECORATIONS.sub("", text)) != text and shorter:
        text = shorter
    return text
