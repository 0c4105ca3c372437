"""Modules that have moved, but whose names docs, examples and importers handed out: they work for a release.

The finder is the last of ``sys.meta_path``: it answers only where the module is gone, wherever the name comes
from (an import, a name in YAML, ``python -m``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

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
PROGRAMS = {"training.answers": "paceline.training.answers"}
_PACKAGE = __name__.partition(".")[0]


class MovedModule(ModuleType):
    """A module that is gone: its handed-out names are those of ``paceline.extend``, with a warning."""

    def __getattr__(self, name: str) -> object:
        known = NAMES.get(_below(self.__name__), {})
        if name not in known:
            have = f": it has {', '.join(known.values())}" if known else ""
            raise AttributeError(f"module {self.__name__!r} has moved: use {_PACKAGE}.extend{have}")
        _warn(f"{self.__name__}:{name}", f"{_PACKAGE}.extend:{known[name]}")
        return self.__dict__.setdefault(name, getattr(import_module(f"{_PACKAGE}.extend"), known[name]))

    def __call__(self, *args: object, **options: object) -> object:
        """Call the library's function of this name: ``paceline.plan`` was a package and a function."""
        home = vars(sys.modules[_PACKAGE])["_HOMES"][_below(self.__name__)]
        return getattr(import_module(home), _below(self.__name__))(*args, **options)


class MovedModules(Loader):
    """The finder and loader of ``MovedModule``."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a moved module, of a program, or of a package that such a one was in."""
        known = [known for known in (*NAMES, *PROGRAMS) if f"{known}.".startswith(f"{_below(name)}.")]
        if not name.startswith(f"{_PACKAGE}.") or not known:
            return None
        return ModuleSpec(name, MovedModules(), is_package=_below(name) not in PROGRAMS)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are found when they are asked for."""

    def get_code(self, name: str) -> CodeType:
        """Return what ``python -m`` runs."""
        program = PROGRAMS[_below(name)]
        _warn(f"python -m {name}", f"python -m {program}")
        source = f"import runpy; runpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
        return compile(source, name, "exec")


def _below(name: str) -> str:
    return name.removeprefix(f"{_PACKAGE}.")


def _warn(before: str, now: str) -> None:
    what = f"{before} has moved, and works until the next release only: write {now}"
    warnings.warn(what, FutureWarning, stacklevel=3)


def install() -> None:
    """Make the names of moved modules importable."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
