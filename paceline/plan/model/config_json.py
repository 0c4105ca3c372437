"""Read the model's ``config.json`` from this machine, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.files import MAX_CONFIG_BYTES
from paceline.core.json_types import JsonObject
from paceline.plan import codes
from paceline.plan.model.read_shape import cached_model_dir
from paceline.plan.model.weights_files import read_json

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection


def model_config(model: ModelSection, environ: Mapping[str, str]) -> JsonObject:
    """Return ``model.config``, or the ``config.json`` of a local folder or the Hugging Face cache.

    Raises ConfigError if it is not on this machine.
    """
    if model.config:
        return dict(model.config)
    name = model.name_or_path or ""
    folder: Path | None = Path(name).expanduser()
    if folder is None or not folder.is_dir():
        home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        folder = cached_model_dir(name, model.revision, Path(environ.get("HF_HUB_CACHE") or home / "hub"))
    try:
        found = read_json(folder / "config.json", MAX_CONFIG_BYTES) if folder else None
    except (OSError, ValueError) as error:
        raise ConfigError(
            codes.PLAN_MODEL_CONFIG("the model has no readable config.json", str(folder), str(error))
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            codes.PLAN_MODEL_CONFIG(
                "the model's config.json is not on this machine",
                "model.name_or_path",
                name or "nothing",
                (
                    f"download it first: hf download {name} config.json"
                    if name
                    else "model.name_or_path or model.config"
                ),
            )
        )
    return found


def pretrained_dtype(model: ModelSection, environ: Mapping[str, str]) -> str | None:
    """Return the dtype (torch's name) of the pretrained weights; None from scratch, or if not known yet."""
    if not model.name_or_path:
        return None
    try:
        config = model_config(model, environ)
    except ConfigError:
        return None  # not downloaded yet; errors in it are reported where the shape is read
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    found = next((c[key] for c in (config, inner) for key in ("dtype", "torch_dtype") if c.get(key)), None)
    return str(found).removeprefix("torch.") if found else None
