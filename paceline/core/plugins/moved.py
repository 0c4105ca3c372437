"""Old names of moved modules from docs, examples and importers, which keep working for one release.

The finder is last in ``sys.meta_path``, so it only handles missing modules. The name may come from an import,
from YAML or from ``python -m``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module, util
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

# Without the package's name: these are the names of then, wherever the modules are now.
#: Module → its names that were handed out → what each is in ``paceline.extend``
NAMES: dict[str, dict[str, str]] = {
    "algorithms.base": {"Algorithm": "Algorithm"},
    "algorithms.rewards.sample": {"Sample": "Sample"},
    "algorithms.sft": {"SFT": "SFT", "TERM": "SFT_TERM"},
    "core.diagnostics": {"Code": "Code", "Diagnostic": "Diagnostic", "Severity": "Severity"},
    "data.kinds.base": {"RowKind": "RowKind"},
    "generation.engine": {"GenerationEngine": "GenerationEngine"},
    "plan.algorithms.base": {"AlgorithmSpec": "AlgorithmSpec"},
    "plan.strategies.base": {"StrategySpec": "StrategySpec"},
    "plan.strategies.replicated": {"DDP": "DDP_SPEC"},
    "protocols.batch": {"Batch": "Batch"},
    "protocols.roles": {"Output": "Output", "Role": "Role"},
    "strategies.base": {"Strategy": "Strategy"},
    "strategies.ddp": {"DDP": "DDP"},
    "strategies.replicas": {"ParallelInference": "ParallelInference"},
    "training.base_trainer": {"BaseTrainer": "BaseTrainer"},
    "training.loss_watchdog": {"LossWatchdog": "LossWatchdog"},
}
#: Program of ``python -m`` that was handed out → where it is
PROGRAMS = {"training.answers": "paceline.training.exact_match"}
_PACKAGE = __name__.partition(".")[0]


class CallableRoom(ModuleType):
    """A package with the name of a library function; calling it calls the function."""

    def __call__(self, *args: object, **options: object) -> object:
        """Call the function."""
        name = _below(self.__name__)
        return getattr(import_module(vars(sys.modules[_PACKAGE])["_HOMES"][name]), name)(*args, **options)


class MovedModule(CallableRoom):
    """A removed module; its public names come from ``paceline.extend``, with a warning."""

    def __getattr__(self, name: str) -> object:
        names = NAMES.get(_below(self.__name__), {})
        if name not in names:
            have = f": it has {', '.join(names.values())}" if names else ""
            raise AttributeError(f"module {self.__name__!r} has moved: use {_PACKAGE}.extend{have}")
        _warn(f"{self.__name__}:{name}", f"{_PACKAGE}.extend:{names[name]}")
        return self.__dict__.setdefault(name, getattr(import_module(f"{_PACKAGE}.extend"), names[name]))


class MovedModules(Loader):
    """The finder and loader of ``MovedModule``."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a moved module, of its former package, or of a program."""
        below = _below(name)
        if below in PROGRAMS and name != PROGRAMS[below] and (program := util.find_spec(PROGRAMS[below])):
            _warn(f"python -m {name}", f"python -m {program.name}")
            return util.spec_from_file_location(name, str(program.origin))
        if below == name or not any(f"{module}.".startswith(f"{below}.") for module in (*NAMES, *PROGRAMS)):
            return None
        return ModuleSpec(name, MovedModules(), is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module resolve its names on access."""
        module.__class__ = MovedModule


def _below(name: str) -> str:
    return name.removeprefix(f"{_PACKAGE}.")


def _warn(before: str, now: str) -> None:
    warnings.warn(
        f"{before} has moved, and works until the next release only: write {now}", FutureWarning, stacklevel=3
    )


def install() -> None:
    """Make the names of moved modules importable."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
