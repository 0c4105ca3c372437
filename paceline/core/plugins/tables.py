"""Tables of strategies, algorithms and kinds of user-defined parts: name → what implements it, on demand.

A ``Registry`` lists its names without importing a module. A spec describes the strategy or algorithm without
importing torch; rules, the plan and the generated pages read it. The class implements it in the worker
processes. Code elsewhere never compares with a name.

A user's part is named as ``module:attr`` wherever the config has its key; a package registers a name for one
in the entry-point group ``paceline.KIND``.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from paceline.core import codes
from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import Json


def load_attr(target: str) -> Any:
    """Import ``module:attr``. Raises ConfigError when the module or the attribute does not exist."""
    module_name, _, attr = target.partition(":")
    if not module_name or not attr:
        raise ConfigError(codes.CORE_TARGET(found=target))
    if module_name.endswith(".py") or "/" in module_name:
        name = Path(module_name).name.removesuffix(".py")
        raise ConfigError(
            codes.CORE_TARGET_MODULE(
                "this is the path of a file, where the name of a module is wanted",
                found=target,
                hint=f"{name}:{attr}, with the file's folder as the start's, or on PYTHONPATH",
            )
        )
    try:
        # a plan asks the tables 1,400 times
        module = sys.modules.get(module_name) or importlib.import_module(module_name)
    except Exception as exc:  # a user's module may raise anything
        there = not isinstance(exc, ModuleNotFoundError) or exc.name not in (
            module_name,
            module_name.split(".")[0],
        )
        raise ConfigError(
            codes.CORE_TARGET_MODULE(
                f"module '{module_name}' cannot be imported",
                found=f"{type(exc).__name__}: {exc}"[:400],
                hint=(
                    "correct the module: it raises an error when it is imported"
                    if there
                    else "start from the folder that contains it, or add that folder to PYTHONPATH"
                ),
            )
        ) from exc
    if not hasattr(module, attr):
        near = difflib.get_close_matches(attr, [n for n in vars(module) if not n.startswith("_")], n=3)
        raise ConfigError(
            codes.CORE_TARGET_ATTR(
                found=target, module_name=module_name, attr=attr, hint=f"nearest: {', '.join(near) or 'none'}"
            )
        )
    return getattr(module, attr)


class Registry:
    """Built-in names, and ``module:attr`` for user-defined objects."""

    def __init__(self, kind: str, unknown: Code, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._unknown = unknown
        self._entries = dict(entries)

    def names(self) -> tuple[str, ...]:
        """The built-in names, in the order of the table."""
        return tuple(self._entries)

    def load(self, name: str) -> Any:
        """Import the object of a built-in name or ``module:attr``.

        Raises ConfigError with the nearest name.
        """
        if name in self._entries:
            return load_attr(self._entries[name])
        if ":" in name:
            return load_attr(name)
        near = difflib.get_close_matches(name, self._entries, n=1)
        remedy = (
            f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(self._entries)}, or module:name"
        )
        raise ConfigError(self._unknown(f"there is no {self.kind} named '{name}'", found=name, hint=remedy))


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
    "retrieval": "paceline.data.rows.kinds.retrieval:RETRIEVAL",
    "ranked": "paceline.data.rows.kinds.retrieval:RANKED",
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
        "sft": Row(
            "paceline.plan.algorithms.supervised:SFT",
            "paceline.algorithms.supervised.sft:SFT",
            f"{_SECTIONS}.algorithms.supervised:SftOptions",
        ),
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
            f"{_SECTIONS}.algorithms.supervised:ClassificationOptions",
        ),
        "embedding": Row(
            "paceline.plan.algorithms.retrieval:EMBEDDING",
            "paceline.algorithms.supervised.retrieval:Embedding",
            f"{_SECTIONS}.algorithms.supervised:EmbeddingOptions",
        ),
        "reranker": Row(
            "paceline.plan.algorithms.retrieval:RERANKER",
            "paceline.algorithms.supervised.retrieval:Reranker",
            f"{_SECTIONS}.algorithms.supervised:RerankerOptions",
        ),
        "distillation": Row(
            "paceline.plan.algorithms.supervised:DISTILLATION",
            "paceline.algorithms.supervised.distillation:Distillation",
            f"{_SECTIONS}.algorithms.supervised:DistillationOptions",
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
            f"{_SECTIONS}.algorithms.on_policy:PpoOptions",
        ),
        "rloo": Row(
            f"{_ON_POLICY}:RLOO",
            "paceline.algorithms.on_policy.rloo:RLOO",
            f"{_SECTIONS}.algorithms.on_policy:RlooOptions",
        ),
        "reinforce_plus_plus": Row(
            f"{_ON_POLICY}:REINFORCE_PLUS_PLUS",
            "paceline.algorithms.on_policy.reinforce_plus_plus:ReinforcePlusPlus",
            f"{_SECTIONS}.algorithms.on_policy:ReinforcePlusPlusOptions",
        ),
        "grpo": Row(
            f"{_ON_POLICY}:GRPO",
            "paceline.algorithms.on_policy.grpo:GRPO",
            f"{_SECTIONS}.algorithms.on_policy:GrpoOptions",
        ),
    },
)


def source_of(module_name: str) -> Path | None:
    """Return the file of a module, found package by package without importing any; None if there is none."""
    places, origin = None, None
    for end in (i for i, letter in enumerate(module_name + ".") if letter == "."):
        spec = PathFinder.find_spec(module_name[:end], places)
        places, origin = (spec.submodule_search_locations, spec.origin) if spec else (None, None)
    return Path(origin) if origin else None


def is_assigned(target: str) -> bool:
    """Whether the module's source assigns ``attr`` at top level, found without importing it.

    False when there is no readable Python source.
    """
    module_name, _, attr = target.partition(":")
    origin = source_of(module_name)
    # Look for an assignment at top level
    try:
        tree = ast.parse(read_text(origin)) if origin and origin.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return False
    targets = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    return attr in {name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)}


def is_async(function: Callable[..., Json]) -> bool:
    """Whether a call returns a coroutine or an asynchronous generator, also of an object or a partial."""
    # A partial hides what it wraps
    plain = function.func if isinstance(function, partial) else function
    called = (plain, getattr(type(plain), "__call__", None))  # noqa: B004
    return any(
        inspect.iscoroutinefunction(callable_) or inspect.isasyncgenfunction(callable_)
        for callable_ in called
    )


@dataclass(frozen=True)
class Extension:
    """One kind: its description, YAML key, library argument, and the form of a user's own."""

    words: str
    key: str
    argument: str
    form: str


#: Kind, which is the entry-point group after ``paceline.`` → the extension.
EXTENSIONS: Mapping[str, Extension] = {
    "algorithms": Extension("algorithm", "training.algorithm", "train(algorithm=)", "module:SPEC"),
    "strategies": Extension(
        "strategy", "training.distributed_strategy", "train(strategy=)", "module:Class or module:SPEC"
    ),
    "datasets": Extension("data set", "data.train, data.eval", "train(dataset=)", "module:function"),
    "converters": Extension("row converter", "data.converter", "train(converter=)", "module:function"),
    "rewards": Extension("reward", "training.rollout.rewards", "train(rewards=)", "module:function"),
    "metrics": Extension("metric of answers", "training.eval_metrics", "train(metrics=)", "module:function"),
    "callbacks": Extension("callback", "training.callbacks", "train(callbacks=)", "module:Class"),
    "trackers": Extension("tracker", "training.report_to", "train(trackers=)", "module:Class"),
    "exporters": Extension("exporter", "training.exporters", "export(exporters=)", "module:function"),
}


def registered(kind: str, name: str) -> tuple[str, ...]:
    """Return the ``module:attr`` that installed packages register for ``name``: none, one, or several if they
    disagree. ``kind`` is a key of EXTENSIONS. Imports none of them.
    """
    from importlib.metadata import entry_points  # slow to import

    assert kind in EXTENSIONS, kind
    return tuple(sorted({point.value for point in entry_points(group=f"paceline.{kind}", name=name)}))
