"""Tables of strategies and algorithms: name → (spec, class), both ``module:attr`` imported on demand.

A spec describes the strategy or algorithm without importing torch; rules, the plan and the generated pages
read it. The class implements it in the worker processes. Code elsewhere never compares with a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core import codes
from paceline.core.diagnostics import Code
from paceline.core.plugins.registry import Registry, load_attr


@dataclass(frozen=True)
class Row:
    """One row of a table: ``module:attr`` of the spec, the class and an algorithm's options (empty: none)."""

    spec: str
    implementation: str
    options: str = ""


class Table:
    """The built-in names of one kind, and ``module:attr`` for user-defined ones."""

    def __init__(self, kind: str, unknown: Code, rows: Mapping[str, Row]) -> None:
        self._rows = dict(rows)
        self._specs = Registry(kind, unknown, {name: row.spec for name, row in rows.items()})
        self._classes = Registry(kind, unknown, {name: row.implementation for name, row in rows.items()})
        self._options = {name: row.options for name, row in rows.items() if row.options}

    def names(self) -> tuple[str, ...]:
        """The built-in names, in the order of the table."""
        return tuple(self._rows)

    def spec(self, name: str) -> Any:
        """Import the spec of a built-in name, without torch. Raises ConfigError with the nearest name."""
        return self._specs.load(name)

    def load(self, name: str) -> Any:
        """Import the class of a built-in name or ``module:Class``.

        Raises ConfigError with the nearest name.
        """
        return self._classes.load(name)

    def sections(self) -> dict[str, Any]:
        """Return the options model (a section of ``training``) of each built-in name that has one."""
        return {name: load_attr(target) for name, target in self._options.items()}

    def section(self, name: str) -> Any:
        """Return the options model of one name; None when it has no options."""
        return load_attr(self._options[name]) if name in self._options else None


_REPLICATED, _DEEPSPEED = "paceline.plan.strategies.replicated", "paceline.plan.strategies.deepspeed.spec"
_ENGINE = "paceline.strategies.deepspeed.strategy:DeepSpeed"

STRATEGIES = Table(
    "strategy",
    codes.STRATEGY_UNKNOWN,
    {
        "single": Row(f"{_REPLICATED}:SINGLE", "paceline.strategies.strategy:Single"),
        "data_parallel": Row(
            f"{_REPLICATED}:DATA_PARALLEL", "paceline.strategies.data_parallel:DataParallel"
        ),
        "ddp": Row(f"{_REPLICATED}:DDP", "paceline.strategies.ddp:DDP"),
        "zero_redundancy": Row(
            "paceline.plan.strategies.replicated:ZERO_REDUNDANCY",
            "paceline.strategies.ddp:ZeroRedundancy",
        ),
        "fsdp": Row("paceline.plan.strategies.fsdp:FSDP", "paceline.strategies.fsdp.strategy:FSDP"),
        "pipeline": Row(
            "paceline.plan.strategies.pipeline:PIPELINE",
            "paceline.strategies.pipeline.strategy:Pipeline",
        ),
        "deepspeed": Row(f"{_DEEPSPEED}:DEEPSPEED", _ENGINE),
        "zero1": Row(f"{_DEEPSPEED}:ZERO1", _ENGINE),
        "zero2": Row(f"{_DEEPSPEED}:ZERO2", _ENGINE),
        "zero3": Row(f"{_DEEPSPEED}:ZERO3", _ENGINE),
    },
)


@dataclass(frozen=True)
class Chooser:
    """A value of ``distributed_strategy`` that leaves the choice to the planner.

    With ``sections`` (keys of ``training``) it chooses by the sections given and the model's size; without,
    it searches all layouts.
    """

    name: str
    sections: frozenset[str] = frozenset()

    @property
    def searches(self) -> bool:
        """Whether the planner searches all layouts, so that the config may not fix any part of one."""
        return not self.sections


CHOOSERS = {c.name: c for c in (Chooser("auto", frozenset({"fsdp", "deepspeed"})), Chooser("fastest"))}
#: Kinds of data rows; an algorithm's spec names one.
ROW_KINDS = {
    "documents": "paceline.data.rows.kinds.base:DOCUMENTS",
    "pairs": "paceline.data.rows.kinds.preference_pairs:PAIRS",
    "labelled": "paceline.data.rows.kinds.labelled_answers:LABELLED",
    "classified": "paceline.data.rows.kinds.classified:CLASSIFIED",
    "prompts": "paceline.data.rows.kinds.prompts:PROMPTS",
}
_PAIRS, _ON_POLICY, _SECTIONS = (
    "paceline.plan.algorithms.preference",
    "paceline.plan.algorithms.on_policy",
    "paceline.config.sections",
)

ALGORITHMS = Table(
    "algorithm",
    codes.ALGORITHM_UNKNOWN,
    {
        "sft": Row("paceline.plan.algorithms.supervised:SFT", "paceline.algorithms.supervised.sft:SFT"),
        "reward": Row(
            f"{_PAIRS}:REWARD",
            "paceline.algorithms.preference.reward_model:Reward",
            f"{_SECTIONS}.algorithms.preference:RewardOptions",
        ),
        "dpo": Row(
            f"{_PAIRS}:DPO",
            "paceline.algorithms.preference.dpo:DPO",
            f"{_SECTIONS}.algorithms.preference:DpoOptions",
        ),
        "classification": Row(
            "paceline.plan.algorithms.supervised:CLASSIFICATION",
            "paceline.algorithms.supervised.classification:Classification",
            f"{_SECTIONS}.algorithms.classification:ClassificationOptions",
        ),
        "distillation": Row(
            "paceline.plan.algorithms.supervised:DISTILLATION",
            "paceline.algorithms.supervised.distillation:Distillation",
            f"{_SECTIONS}.algorithms.distillation:DistillationOptions",
        ),
        "kto": Row(
            "paceline.plan.algorithms.preference:KTO",
            "paceline.algorithms.preference.kto:KTO",
            f"{_SECTIONS}.algorithms.preference:KtoOptions",
        ),
        "cpo": Row(
            f"{_PAIRS}:CPO",
            "paceline.algorithms.preference.cpo:CPO",
            f"{_SECTIONS}.algorithms.preference:CpoOptions",
        ),
        "orpo": Row(
            f"{_PAIRS}:ORPO",
            "paceline.algorithms.preference.orpo:ORPO",
            f"{_SECTIONS}.algorithms.preference:OrpoOptions",
        ),
        "simpo": Row(
            f"{_PAIRS}:SIMPO",
            "paceline.algorithms.preference.cpo:SimPO",
            f"{_SECTIONS}.algorithms.preference:SimpoOptions",
        ),
        "ppo": Row(
            f"{_ON_POLICY}:PPO",
            "paceline.algorithms.on_policy.ppo:PPO",
            f"{_SECTIONS}.algorithms.ppo:PpoOptions",
        ),
        "rloo": Row(
            f"{_ON_POLICY}:RLOO",
            "paceline.algorithms.on_policy.rloo:RLOO",
            f"{_SECTIONS}.algorithms.rloo:RlooOptions",
        ),
        "reinforce_plus_plus": Row(
            f"{_ON_POLICY}:REINFORCE_PLUS_PLUS",
            "paceline.algorithms.on_policy.reinforce_plus_plus:ReinforcePlusPlus",
            f"{_SECTIONS}.algorithms.reinforce_plus_plus:ReinforcePlusPlusOptions",
        ),
        "grpo": Row(
            f"{_ON_POLICY}:GRPO",
            "paceline.algorithms.on_policy.grpo:GRPO",
            f"{_SECTIONS}.rollout:GrpoOptions",
        ),
    },
)
