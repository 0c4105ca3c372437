"""Algorithm classes by name, or by the spec of a user's own algorithm."""

from __future__ import annotations

from paceline.algorithms import codes
from paceline.algorithms.algorithm import Algorithm
from paceline.core.errors import ConfigError
from paceline.core.plugins.registry import load_attr
from paceline.core.plugins.tables import ALGORITHMS
from paceline.plan.algorithms.spec import algorithm_spec

_RENAMED = {
    "ask": "required_outputs",
    "consulted": "reference_roles",
    "informed": "attach_outputs",
    "watched": "train_metrics",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class of the algorithm ``name``.

    Raises ConfigError for an unknown name, and for a spec whose implementation is not a subclass of
    Algorithm.
    """
    spec = algorithm_spec(name)
    cls: object = load_attr(spec.implementation) if spec.own else ALGORITHMS.load(name)
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        hint = "name a class that inherits from paceline.extend:Algorithm (or SFT)"
        what = f"the implementation of '{name}' is not an algorithm"
        raise ConfigError(codes.ALGORITHM_NOT_AN_ALGORITHM(what, "training.algorithm", repr(cls), hint))
    renamed = {old: new for old, new in _RENAMED.items() if any(old in vars(base) for base in cls.__mro__)}
    if renamed:
        what = f"the implementation of '{name}' defines names that training no longer uses"
        hint = "; ".join(f"rename {old} to {new}" for old, new in renamed.items())
        raise ConfigError(
            codes.ALGORITHM_NOT_AN_ALGORITHM(what, "training.algorithm", ", ".join(renamed), hint)
        )
    return cls
