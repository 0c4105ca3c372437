"""Paceline: one YAML, any strategy, the same losses. Importing this package imports no torch.

The library (``docs/reference/library.md``) is the names in ``__all__``, each imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from paceline.core.package import PACKAGE_VERSION
from paceline.core.plugins import moved

if TYPE_CHECKING:
    from paceline.api.arguments import JobConfig as JobConfig
    from paceline.api.arguments import load_config as load_config
    from paceline.api.evaluating import Evaluation as Evaluation
    from paceline.api.evaluating import evaluate as evaluate
    from paceline.api.evaluating import generate as generate
    from paceline.api.planning import PlannedRun as PlannedRun
    from paceline.api.planning import plan as plan
    from paceline.api.proving import migrate as migrate
    from paceline.api.run import Checkpoint as Checkpoint
    from paceline.api.run import Run as Run
    from paceline.api.run import checkpoints as checkpoints
    from paceline.api.run import export as export
    from paceline.api.training import rehearse as rehearse
    from paceline.api.training import train as train
    from paceline.api.verifying import verify as verify
    from paceline.core.diagnostics import Diagnostic as Diagnostic
    from paceline.core.errors import CheckpointError as CheckpointError
    from paceline.core.errors import ConfigError as ConfigError
    from paceline.core.errors import DataError as DataError
    from paceline.core.errors import PacelineError as PacelineError

__version__ = PACKAGE_VERSION
_HOMES = {
    "Checkpoint": "paceline.api.run",
    "CheckpointError": "paceline.core.errors",
    "ConfigError": "paceline.core.errors",
    "DataError": "paceline.core.errors",
    "Diagnostic": "paceline.core.diagnostics",
    "Evaluation": "paceline.api.evaluating",
    "JobConfig": "paceline.api.arguments",
    "PacelineError": "paceline.core.errors",
    "PlannedRun": "paceline.api.planning",
    "Run": "paceline.api.run",
    "checkpoints": "paceline.api.run",
    "evaluate": "paceline.api.evaluating",
    "export": "paceline.api.run",
    "generate": "paceline.api.evaluating",
    "load_config": "paceline.api.arguments",
    "migrate": "paceline.api.proving",
    "plan": "paceline.api.planning",
    "rehearse": "paceline.api.training",
    "train": "paceline.api.training",
    "verify": "paceline.api.verifying",
}
__all__ = ["__version__", *_HOMES]


class _Library(ModuleType):
    """This package. ``paceline.plan`` is a package with the planner, and a function of the library."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, ModuleType):  # the import system binds a submodule
            value.__class__ = moved.CallableRoom
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            found = import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            found = getattr(import_module(_HOMES[name]), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted(__all__)  # what completion offers: not what this file imports


sys.modules[__name__].__class__ = _Library
moved.install()
