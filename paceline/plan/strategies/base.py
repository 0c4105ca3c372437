"""``StrategySpec``: what a strategy is and what it takes; every question about one is asked here, none of its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.registry import is_assigned, load_attr
from paceline.core.tables import STRATEGIES
from paceline.plan import codes
from paceline.plan.batch import BatchSplit
from paceline.plan.cost.layout import StrategyLayout
from paceline.plan.cost.starts import LoadingSpec
from paceline.plan.hardware.probe import Hardware
from paceline.plan.job_to_check import JobToCheck
from paceline.plan.mesh import Mesh, mesh_for
from paceline.plan.plan import Plan, Precision
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.options import EngineOptions
from paceline.plan.strategies.state_form import StateForm

if TYPE_CHECKING:
    from paceline.plan.cost.pieces import OwnStages, Piece
    from paceline.plan.cost.work import StepSpec
    from paceline.plan.parts import ModelStates


class Simulated(Enum):
    """How much of a step torch can run without real tensors (``paceline.simulate``)."""

    NOTHING = 0
    MODULE = 1
    MODULE_AND_STATES = 2
    ALL = 3


@dataclass(frozen=True)
class StrategySpec:
    """Of a class of the user's own, of which nothing is said, each of these is what forbids least; its memory and speed are unknown. A spec of the
    user's own names that class: ``implementation``, as ``module:Class``.

    ``requires``: packages. ``engine``: the name of what does the work, where several strategies share it (empty: ``name``).
    ``axes``: the sizes of ``training.parallelism`` it may have (None: any). ``sections``: keys of ``training`` that are options of it; ``training_keys``: single ones, without effect under others.
    ``one_process``: for a job of one process; ``multi_device``: which drives all devices of its node. ``min_processes`` of a job.
    ``alone``: the strategy that computes the same in one process. ``zero_stage``: ZeRO's, where the name fixes it.
    ``substitute``: (strategy, ``training.fsdp``) that shares out the same states where a required package is missing.
    ``sharding``: ``training.fsdp`` where ``auto`` chooses it. ``shards_weights``: a rank keeps a part of the weights. ``whole_modules``: forwards and optimizer see whole weights.
    ``whole_rows``: every rank runs whole layers on whole rows. ``stages``: the model is cut into stages.
    ``score_axes``: axes of the mesh across which log-probabilities of whole answers are computed and answers are written.
    ``float64``, ``loss_scale``: trains in float64; scales the loss of fp16. ``engine_casts``: what does the work casts weights to the compute dtype.
    ``simulated``, ``not_simulated``: what torch runs of it without real tensors, and why not the rest.
    ``quantised_base``: trains adapters on 4-bit weights. ``state_form``: that of its checkpoints (None: one of its own).
    """

    name: str = ""
    requires: tuple[str, ...] = ()
    engine: str = ""
    axes: frozenset[str] | None = None
    sections: frozenset[str] = frozenset()
    training_keys: frozenset[str] = frozenset()
    one_process: bool = False
    multi_device: bool = False
    min_processes: int = 1
    alone: str = ""
    zero_stage: int | None = None
    substitute: tuple[str, str] | None = None
    sharding: str | None = None
    shards_weights: bool = False
    whole_modules: bool = True
    whole_rows: bool = True
    stages: bool = False
    score_axes: frozenset[str] = frozenset()
    float64: bool = True
    loss_scale: bool = True
    engine_casts: bool = False
    simulated: Simulated = Simulated.NOTHING
    not_simulated: str = ""
    quantised_base: bool = True
    state_form: StateForm | None = None
    implementation: str = ""

    @property
    def engine_name(self) -> str:
        """What does the work, as a message names it."""
        return self.engine or self.name

    def check(self, job: JobToCheck) -> Iterable[Diagnostic]:
        """What this strategy cannot be combined with, and settings that do nothing under it: findings of the one pass of rules, made by ``job.problem``."""
        return ()

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        """The mesh of a job; what stands against its sizes goes to ``findings``."""
        return mesh_for(job.parallelism, job.world_size)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        """``Plan.engine``; decisions and what stands against the options go to ``findings``."""
        return EngineOptions()

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        """Where a start holds the whole model, by the resolved options ``engine``; None where nobody knows."""
        return None

    def label(self, engine: EngineOptions) -> str:
        """Its name, or what the options ``engine`` make of it."""
        return self.name

    def keeps_packed(self, engine: EngineOptions) -> bool:
        """Whether 4-bit weights stay packed under the options ``engine``."""
        return self.quantised_base

    def own_stages(self, plan: Plan, rank: int) -> OwnStages | None:
        """The stages of the model that ``rank`` has (``pieces_of``); None: all of it."""
        return None

    def states(self, plan: Plan, pieces: Sequence[Piece], rank: int) -> ModelStates | None:
        """Bytes that ``rank`` keeps of ``pieces``; None where nobody knows."""
        return None

    def shares_frozen(self, engine: EngineOptions) -> bool:
        """Whether models that are only asked are shared out as the trained one is; else every rank has them whole."""
        return False

    def in_parts(self, mesh: Mesh, engine: EngineOptions) -> bool:
        """Whether each rank holds a part of the weights, so that they are gathered to write answers."""
        return False

    def layouts(self) -> tuple[StrategyLayout, ...]:
        """Its part of the search."""
        return ()

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        """What a plan comes to for the cost model; None where memory and speed are not known."""
        return None

    def settings(self, work: StepSpec, mesh: Mesh) -> dict[str, Any]:
        """The keys of ``training`` that start a layout of it on ``mesh``."""
        if self.alone and work.world == 1:
            return {"distributed_strategy": self.alone}
        sizes: dict[str, Any] = {f"{axis}_size": size for axis, size in mesh.to_json().items() if size > 1}
        return {
            "distributed_strategy": self.name,
            "parallelism": sizes | ({"sequence_parallel": True} if work.tp > 1 else {}),
        }

    def collectives(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Of one optimizer step: kind → (how many, bytes of the whole tensors); empty where there is no closed form."""
        return {}


def strategy_spec(name: str) -> StrategySpec:
    """The spec of a strategy by name; of the user's own by ``module:SPEC``; of a class of the user's own, ``module:Class``, one that says nothing.

    Raises ConfigError for an unknown name, and for a module of a spec that cannot be imported or imports torch.
    """
    if ":" in name:
        return (_own_spec(name) if is_assigned(name) else None) or StrategySpec(name)
    found: StrategySpec = STRATEGIES.spec(name)
    return found


def _own_spec(name: str) -> StrategySpec | None:
    had_torch = "torch" in sys.modules
    found = load_attr(name)
    if not isinstance(found, StrategySpec):
        return None
    if "torch" in sys.modules and not had_torch:
        module = name.partition(":")[0]
        what = f"'{module}' imports torch, and a plan is made without it"
        hint = f"the class in a module of its own, and in {module}: implementation='other_module:Class'"
        raise ConfigError(codes.STRATEGY_SPEC_TORCH(what, "training.distributed_strategy", name, hint))
    return replace(found, name=name)


def state_form(name: str) -> StateForm:
    """That of a strategy's checkpoints. A class of the user's own, or one that this version does not know, has a form of its own."""
    known = strategy_spec(name).state_form if name in STRATEGIES.names() or ":" in name else None
    return known or StateForm(name, name)


def strategy_specs() -> tuple[StrategySpec, ...]:
    """All built-in ones, in the order of the table."""
    return tuple(strategy_spec(name) for name in STRATEGIES.names())


def missing_package(spec: StrategySpec, hardware: Hardware) -> str:
    """The package that ``spec`` requires and this machine has not; empty where nothing is missing, or nobody has looked."""
    if hardware.packages is None:
        return ""
    return next((package for package in spec.requires if package not in hardware.packages), "")
