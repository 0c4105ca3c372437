"""Look up a strategy's class by name, or by ``module:Class`` for one from outside."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.strategies.spec import StrategySpec
from paceline.runtime.process_group.world import World
from paceline.strategies import codes
from paceline.strategies.strategy import Strategy

if TYPE_CHECKING:
    from paceline.plan.plan import Plan

_FINISH = "finish(self, handle, *, lr, max_grad_norm) clips by norm and steps"
_RUNNER = "define your own WindowRunner and set it as the class attribute runner"
_KNOWS_LIMIT = {"super", "finish", "limit"}  # names in the code of a ``finish``
_REPLACED = {
    "grad_norm": _FINISH,
    "step": _FINISH,
    "place": "shard_batch(self, batch)",
    **dict.fromkeys(
        ("train_window", "accumulate", "microstep", "asked", "eval_window", "evaluated"), _RUNNER
    ),
}


def make_strategy(name: str, world: World, plan: Plan) -> Strategy:
    """Return the strategy called ``name`` for this world. Raises ConfigError for an unknown name or a class
    that is not a Strategy.
    """
    return strategy_class(name)(world, plan)


def strategy_class(name: str) -> type[Strategy]:
    """Return the class for a name, or for a spec from outside. Raises ConfigError as ``make_strategy``."""
    cls = STRATEGIES.load(name)
    if isinstance(cls, StrategySpec):
        cls = STRATEGIES.load(cls.implementation)
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ConfigError(
            codes.STRATEGY_NOT_A_STRATEGY(
                f"'{name}' is not a strategy",
                found=repr(cls),
                hint="name a class that inherits from paceline.extend:Strategy (or DDP)",
            )
        )
    moved = [name for name in _REPLACED if any(name in vars(base) for base in cls.__mro__)]
    if moved:
        raise ConfigError(
            codes.STRATEGY_NOT_A_STRATEGY(
                f"'{name}' overrides methods that are no longer called",
                found=", ".join(moved),
                hint="; ".join(f"{old}: {_REPLACED[old]}" for old in moved),
            )
        )
    return cls


def check_skips(cls: type[Strategy]) -> None:
    """Raise ConfigError if a class of one's own, or its runner, makes steps and knows none that is left out.

    A ``finish`` knows one if it calls Paceline's own or reads ``limit``. The runner asks again at a step.
    """
    name = _own_step(cls)
    if name:
        raise ConfigError(codes.STRATEGY_CANNOT_SKIP("training.on_spike", "skip", name=name))


def _own_step(cls: type[Strategy]) -> str:
    from paceline.strategies.window.runner import WindowRunner

    runner = cls.runner or WindowRunner
    if issubclass(runner, WindowRunner) and runner.train_window is not WindowRunner.train_window:
        return runner.__qualname__
    for base in cls.__mro__:
        method = vars(base).get("finish")
        if base.__module__.startswith("paceline.") or not isinstance(method, FunctionType):
            continue
        if not _KNOWS_LIMIT & set(method.__code__.co_names):
            return cls.__qualname__
    return ""
