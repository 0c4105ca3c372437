"""Stable base classes for your own strategies, algorithms, rewards, trainers and row kinds.

These names are stable; the modules that define them are not. Each is imported when it is first used, and
this module imports no torch: a spec is imported where the plan is made (``docs/how-to/extend.md``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.algorithms.algorithm import Algorithm as Algorithm
    from paceline.algorithms.rewards.builtin import Sample as Sample
    from paceline.algorithms.supervised import sft
    from paceline.algorithms.supervised.sft import SFT as SFT
    from paceline.core.diagnostics import Code as Code
    from paceline.core.diagnostics import Diagnostic as Diagnostic
    from paceline.core.diagnostics import Severity as Severity
    from paceline.data.rows.kinds.base import RowKind as RowKind
    from paceline.generation.engine import GenerationEngine as GenerationEngine
    from paceline.plan.algorithms.spec import AlgorithmSpec as AlgorithmSpec
    from paceline.plan.strategies import replicated
    from paceline.plan.strategies.spec import StrategySpec as StrategySpec
    from paceline.protocols.batch import Batch as Batch
    from paceline.protocols.roles import Output as Output
    from paceline.protocols.roles import Role as Role
    from paceline.strategies.data_parallel import ParallelInference as ParallelInference
    from paceline.strategies.ddp import DDP as DDP
    from paceline.strategies.strategy import Strategy as Strategy
    from paceline.training.base_trainer import BaseTrainer as BaseTrainer
    from paceline.training.reporting.callbacks import LossWatchdog as LossWatchdog

    DDP_SPEC = replicated.DDP
    SFT_TERM = sft.TERM

_HOMES = {
    "SFT": "paceline.algorithms.supervised.sft:SFT",
    "SFT_TERM": "paceline.algorithms.supervised.sft:TERM",
    "Algorithm": "paceline.algorithms.algorithm:Algorithm",
    "AlgorithmSpec": "paceline.plan.algorithms.spec:AlgorithmSpec",
    "BaseTrainer": "paceline.training.base_trainer:BaseTrainer",
    "Batch": "paceline.protocols.batch:Batch",
    "Code": "paceline.core.diagnostics:Code",
    "DDP": "paceline.strategies.ddp:DDP",
    "DDP_SPEC": "paceline.plan.strategies.replicated:DDP",
    "Diagnostic": "paceline.core.diagnostics:Diagnostic",
    "GenerationEngine": "paceline.generation.engine:GenerationEngine",
    "LossWatchdog": "paceline.training.reporting.callbacks:LossWatchdog",
    "Output": "paceline.protocols.roles:Output",
    "ParallelInference": "paceline.strategies.data_parallel:ParallelInference",
    "Role": "paceline.protocols.roles:Role",
    "RowKind": "paceline.data.rows.kinds.base:RowKind",
    "Sample": "paceline.algorithms.rewards.builtin:Sample",
    "Severity": "paceline.core.diagnostics:Severity",
    "Strategy": "paceline.strategies.strategy:Strategy",
    "StrategySpec": "paceline.plan.strategies.spec:StrategySpec",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return globals().setdefault(name, getattr(import_module(module), attribute))


def __dir__() -> list[str]:
    return list(__all__)
