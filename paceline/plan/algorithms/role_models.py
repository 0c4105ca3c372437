"""Further models that the config names for the algorithm's roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.model.read_config import ModelShape, shape_of


def models_named(training: TrainingSection) -> dict[str, str]:
    """Return model name → config key for the algorithm's roles other than the trained model's."""
    spec = algorithm_spec(training.algorithm)
    found: dict[str, str] = {}
    for role in spec.named_roles():
        name = spec.model_named(training, role)
        if name is not None:
            found.setdefault(name, key_of_model(training, role))
    return found


def key_of_model(training: TrainingSection, role: str) -> str:
    """Return the config key that names the role's model: its own option, else the rewards."""
    spec = algorithm_spec(training.algorithm)
    key = spec.named.get(role, "")
    of_its_own = spec.options_of(training).get(key) is not None
    return f"{spec.key}.{key}" if of_its_own else "training.rollout.rewards"


def named_shapes(
    config: Config, environ: Mapping[str, str] | None = None, *, exactly: bool = False
) -> dict[str, ModelShape | None]:
    """Return the shapes of the named models (``make_plan``'s ``others``); None if not downloaded yet.

    ``exactly``: as in ``shape_of``.

    Raises ConfigError for a missing folder.
    """
    found: dict[str, ModelShape | None] = {}
    wrong: list[Diagnostic] = []
    for name, key in models_named(config.training).items():
        try:
            found[name] = shape_of(
                config.model.model_copy(update={"name_or_path": name, "config": None, "revision": None}),
                environ,
                exactly=exactly,
            )
        except ConfigError as error:
            wrong += (
                replace(d, where=key) if d.where == "model.name_or_path" else d for d in error.diagnostics
            )
    if wrong:
        raise ConfigError(*wrong)
    return found
