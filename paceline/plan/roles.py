"""The models beside the one that is trained, as far as a config names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.plan.algorithms.base import algorithm_spec
from paceline.plan.shape import ModelShape, shape_of

BESIDE = ("reference", "value", "reward")


def named_shapes(config: Any, environ: Mapping[str, str] | None = None) -> dict[str, ModelShape | None]:
    """The shapes of the models that the algorithm's roles name (``make_plan``'s ``others``); None for one that is not here yet. Raises ConfigError
    for a folder that is missing."""
    training = config.to_json()["training"]
    spec = algorithm_spec(training["algorithm"])
    found: dict[str, ModelShape | None] = {}
    for role in BESIDE:
        name = spec.model_named(training, role)
        if name is not None and name not in found:
            found[name] = shape_of(config.model.model_copy(update={"name_or_path": name, "config": None, "revision": None}), environ)  # fmt: skip
    return found
