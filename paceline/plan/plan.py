"""The Plan: what will happen, frozen, JSON both ways, with a digest and the reason for each choice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.config.schema import Config
from paceline.core.units import human_count
from paceline.plan import codec
from paceline.plan.batch import BatchSplit
from paceline.plan.mesh import Mesh
from paceline.plan.model.read_shape import ModelShape
from paceline.plan.parts import AdapterSpec, EngineKnobs, Memory, OptimizerSpec, OtherModel
from paceline.plan.strategies.options import NO_OPTIONS, EngineOptions, options_from_json

#: What a decision's ``choice`` begins with that only warns.
WARNING = "warning "


@dataclass(frozen=True)
class Decision:
    """One choice: its subject (a config key or a word), what was chosen, why. ``granted`` is False when something asked for is off."""

    subject: str
    choice: str
    reason: str
    granted: bool = True


@dataclass(frozen=True)
class Precision:
    """Dtypes by torch's names: ``compute`` of forward and backward, ``master`` weights, ``reduce`` of gradients; ``scaler`` for fp16."""

    compute: str
    master: str
    reduce: str
    scaler: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """Config and hardware resolved.

    ``strategy`` is never "auto"; ``timeout_seconds`` is the process group's; ``seq_len`` counts tokens of a row; ``config`` is what was resolved, for the planner and for checkpoints: below the worker its values come by the attributes and properties here. ``world_size`` counts processes over all nodes.
    ``engine`` holds the strategy's own resolved options (``plan.engine_options``), ``adapter`` those of LoRA or None (``plan.adapter``).
    ``reference`` says where DPO's comes from: ``live``, ``adapter`` (switched off), ``cached``, or empty (``plan.roles``).
    ``models`` are the other models of the algorithm by role, ``memory`` the model states a rank (``plan.memory``; None before they are counted).
    """

    algorithm: str
    strategy: str
    strategy_reason: str
    mesh: Mesh
    world_size: int
    num_nodes: int
    device: str
    backend: str
    timeout_seconds: int
    precision: Precision
    batch: BatchSplit
    seq_len: int
    packing: bool
    attention: str
    recompute: bool
    compile: bool
    optimizer: OptimizerSpec
    decisions: tuple[Decision, ...]
    config: Config
    config_digest: str
    run_dir: str
    shape: ModelShape | None
    launcher: str
    paceline_version: str
    engine: EngineOptions = NO_OPTIONS
    adapter: AdapterSpec | None = None
    memory: Memory | None = None
    reference: str = ""
    models: Mapping[str, OtherModel] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.config.training.seed

    @property
    def model_key(self) -> str:
        """The key that names what training starts from."""
        return "model.config" if self.config.model.config else "model.name_or_path"

    @property
    def strategy_options(self) -> Mapping[str, object]:
        """Of a strategy of the user's own, as they are written."""
        return self.config.training.strategy_options

    @property
    def training_keys(self) -> EngineKnobs:
        """What torch's own engines are given."""
        return EngineKnobs.of(self.config.training)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        parts = {"engine": self.engine.to_json(), "config": self.config.to_json()}
        return {**codec.to_json(replace(self, engine=NO_OPTIONS)), **parts}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """The inverse of ``to_json``. Raises ConfigError for a config of another version."""
        parts = {"engine": options_from_json(data.get("engine") or {}), "config": Config.from_json(data["config"])}
        return codec.from_json(Plan, {**data, **parts})

    def dumps(self) -> str:
        """The text of ``plan.json``."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"

    def headline(self) -> str:
        """One line: what is learnt, how, where."""
        where = f"{self.world_size} process{'es' if self.world_size > 1 else ''} on {self.device}"
        size = f", {human_count(self.shape.num_parameters)} parameters" if self.shape else ""
        return f"{self.algorithm} by {self.strategy} in {where}{size}, {self.batch.global_batch} rows a step, {self.precision.compute}"

    def digest(self) -> str:
        """sha256 of everything that decides the run; where it is written, by which launcher it is started, and what is
        warned of (free space of a disk) do not count."""
        data = {key: value for key, value in self.to_json().items() if key not in ("config", "run_dir", "launcher")}
        data["decisions"] = [d for d in data["decisions"] if not d["choice"].startswith(WARNING)]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
