"""``StrategySpec``: a strategy's properties; and ``Job``, the argument of its methods.

Other code reads the properties and never compares strategy names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import util
from itertools import chain
from typing import TYPE_CHECKING

from paceline.config.registries.optimizers import StateSplit
from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import Parallelism
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.plugins.tables import STRATEGIES, is_assigned, load_attr
from paceline.plan import codes
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.hardware.probe import OPTIONAL_PACKAGES, Hardware
from paceline.plan.mesh import BatchSplit, Mesh, mesh_for
from paceline.plan.model.read_config import trained_shape
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, JobToCheck, Plan, Precision
from paceline.plan.strategy_options import EngineOptions
from paceline.plan.user_code import guarded
from paceline.plan.workload.startup_memory import LoadingSpec
from paceline.plan.workload.step_spec import StrategyLayout

if TYPE_CHECKING:
    from paceline.plan.plan import ModelStates
    from paceline.plan.workload.local_tensors import LocalTensor, StagesOfRank
    from paceline.plan.workload.step_spec import StepSpec


@dataclass(frozen=True)
class Job:
    """A config on machines like ``hardware``: ``world_size`` processes on ``num_nodes`` nodes.

    ``launcher`` starts them; ``run_dir`` is the output directory. ``shape`` may be None if ``model.config``
    is given (``model_shape``); ``others`` are the shapes of other models by name. ``needs_room`` is False if
    this plan will not be run itself. ``images``: the first rows of a data set have images.
    """

    config: Config
    hardware: Hardware
    world_size: int = 1
    num_nodes: int = 1
    launcher: str = ""
    run_dir: str = ""
    shape: ModelShape | None = None
    others: Mapping[str, ModelShape | None] = field(default_factory=dict)
    needs_room: bool = True
    images: bool = False

    @property
    def training(self) -> TrainingSection:
        """The config's ``training``."""
        return self.config.training

    @property
    def lora(self) -> LoraSection | None:
        """The config's ``lora``; None where all weights are trained."""
        return self.config.lora

    @property
    def algorithm(self) -> AlgorithmSpec:
        """The algorithm's spec. Raises ConfigError for an unknown algorithm."""
        return algorithm_spec(self.training.algorithm)

    @property
    def ranks_per_node(self) -> int:
        """Processes per node."""
        return self.world_size // self.num_nodes

    @property
    def parallelism(self) -> Parallelism:
        """``training.parallelism``, or its defaults."""
        return self.training.parallelism or Parallelism()

    def axis(self, name: str) -> int:
        """Return the configured size of a mesh axis; 1 if not set."""
        return self.parallelism.size(name)

    def model_shape(self) -> ModelShape | None:
        """Return ``shape``, or the shape of ``model.config``; None if neither is given.

        Raises ConfigError if ``model.config`` does not describe a supported model.
        """
        config = self.config.model.config
        return trained_shape(config, "model.config") if self.shape is None and config else self.shape

    def with_training(self, values: Mapping[str, Json]) -> Job:
        """Return the job with these keys of ``training`` in place of its own."""
        written = self.config.to_json()
        written["training"] = {**as_object(written["training"]), **values}
        return replace(self, config=Config.from_json(written))

    def sharded(self, sharding: str | None) -> Job:
        """Return the job with ``training.fsdp`` set to the plan's choice; unchanged for None."""
        if sharding is None:
            return self
        return replace(
            self,
            config=self.config.model_copy(
                update={"training": self.training.model_copy(update={"fsdp": sharding})}
            ),
        )


@dataclass
class Findings:
    """Decisions for the plan, and problems that prevent the launch, collected while options are read."""

    decisions: list[Decision] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)

    def explain(self, subject: str, choice: str, reason: str, granted: bool = True) -> None:
        """Add a decision."""
        self.decisions.append(Decision(subject, choice, reason, granted))

    def refuse(self, problem: Diagnostic | None) -> None:
        """Add a problem, if there is one."""
        if problem is not None:
            self.problems.append(problem)

    def raise_if_refused(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(*self.problems)


class Simulated(Enum):
    """How much of a step torch can run without real tensors (``paceline.simulate``)."""

    NOTHING = 0
    MODULE = 1
    MODULE_AND_STATES = 2
    ALL = 3


@dataclass(frozen=True)
class StrategySpec:
    """A strategy's properties, without torch.

    The defaults are the least restrictive, for a user-defined class without a spec; its memory and speed are
    unknown. A user-defined spec names its class in ``implementation`` (``module:Class``).

    ``requires``: packages. ``engine``: the engine, if several strategies share one (empty: ``name``).
    ``axes``: mesh axes of ``training.parallelism`` that may be set (None: any). ``sections``: sections of
    ``training`` with its options; ``training_keys``: single keys that only this strategy uses.
    ``one_process``: runs in a single process; ``multi_device``: uses all devices of the node from it.
    ``min_processes``: least number of processes. ``alone``: the strategy that computes the same in one
    process. ``zero_stage``: the ZeRO stage, if the name fixes it. ``substitute``: (strategy,
    ``training.fsdp``) that shards the same states if a required package is missing. ``sharding``:
    ``training.fsdp`` when ``auto`` chooses this strategy. ``shards_weights``: weights are sharded.
    ``whole_modules``: the forward sees unsharded weights. ``not_compiled``: why it cannot train layers
    compiled by torch.compile (empty: it can). ``state_split``: how the optimizer's state is split over ranks.
    ``whole_rows``: every rank runs unsharded layers on full rows. ``stages``: the model is split into
    pipeline stages. ``adapter_axes``: mesh axes over which layers with adapters are sharded. ``score_axes``:
    mesh axes over which log-probabilities of full answers and generation are supported. ``float64``: supports
    float64. ``bf16_masters``: supports weights in bfloat16 without fp32 masters. ``fp8``: supports torchao's
    layers. ``loss_scale``: supports fp16 loss scaling. ``engine_casts``: the engine casts weights to the
    compute dtype. ``needs_group``: needs a process group even in one process. ``gradient_buffers``: gradients
    are allocated with the model, not in the first backward. ``simulated``, ``not_simulated``: how much torch
    runs without real tensors, and why not the rest. ``quantised_base``: trains adapters on a 4-bit base.
    ``state_form``: its checkpoint format (None: its own). ``strategy_options``: options of a user-defined
    strategy with defaults, which set their types; they are given in ``training.strategy_options``.
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
    not_compiled: str = ""
    state_split: StateSplit = StateSplit.WHOLE
    whole_rows: bool = True
    stages: bool = False
    adapter_axes: frozenset[str] = frozenset()
    score_axes: frozenset[str] = frozenset()
    float64: bool = True
    bf16_masters: bool = False
    fp8: bool = False
    loss_scale: bool = True
    engine_casts: bool = False
    needs_group: bool = False
    gradient_buffers: bool = False
    simulated: Simulated = Simulated.NOTHING
    not_simulated: str = ""
    quantised_base: bool = True
    state_form: StateForm | None = None
    implementation: str = ""
    strategy_options: Mapping[str, Json] = field(default_factory=dict)

    @property
    def engine_name(self) -> str:
        """Name of the engine, for messages."""
        return self.engine or self.name

    def check(self, job: JobToCheck) -> Iterable[Diagnostic]:
        """Yield problems of a config with this strategy, made by ``job.problem``.

        Problems are impossible combinations, and settings without effect.
        """
        return ()

    def lacks(self, axis: str) -> bool:
        """Whether this strategy has no such mesh axis (``tp``, ``dp_replicate``, …)."""
        return self.axes is not None and axis not in self.axes

    def tensor_key(self, engine: EngineOptions) -> str:
        """Return the key that sets tensor parallelism under these options."""
        return "tp_size"

    def mesh(self, job: Job, findings: Findings) -> Mesh:
        """Return the job's mesh; problems with its sizes go to ``findings``."""
        return mesh_for(job.parallelism, job.world_size)

    def options(
        self, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
    ) -> EngineOptions:
        """Return ``Plan.engine``; decisions and problems go to ``findings``."""
        return EngineOptions()

    def start(self, engine: EngineOptions) -> LoadingSpec | None:
        """Return where the whole model is held at startup, given the resolved options; None if unknown."""
        return None

    def label(self, engine: EngineOptions) -> str:
        """Return the name to show, which may depend on the options."""
        return self.name

    def keeps_packed(self, engine: EngineOptions) -> bool:
        """Whether 4-bit weights stay quantized under these options."""
        return self.quantised_base

    def gathers_by_layer(self, engine: EngineOptions) -> bool:
        """Whether a weight is gathered only while its own layer computes, so that no other code can read
        it."""
        return False

    def sums_as_they_come(self, engine: EngineOptions) -> bool:
        """Whether ranks sum gradients in the order in which they come, which must be the same on all."""
        return False

    def own_stages(self, plan: Plan, rank: int) -> StagesOfRank | None:
        """Return the pipeline stages that ``rank`` holds (for ``pieces_of``); None: the whole model."""
        return None

    def states(self, plan: Plan, pieces: Sequence[LocalTensor], rank: int) -> ModelStates | None:
        """Return the bytes of model states that ``rank`` keeps of ``pieces``; None if unknown."""
        return None

    def shares_frozen(self, engine: EngineOptions) -> bool:
        """Whether frozen models are sharded like the trained one; otherwise every rank holds them whole."""
        return False

    def in_parts(self, mesh: Mesh, engine: EngineOptions) -> bool:
        """Whether weights are sharded, so that they must be gathered for generation."""
        return False

    def layouts(self) -> tuple[StrategyLayout, ...]:
        """Return the layouts that the search tries."""
        return ()

    def layout(self, mesh: Mesh, engine: EngineOptions) -> StrategyLayout | None:
        """Return a plan's layout for the cost model; None if memory and speed are unknown."""
        return None

    def settings(self, work: StepSpec, mesh: Mesh) -> JsonObject:
        """Return the keys of ``training`` that start this layout on ``mesh``."""
        if self.alone and work.world == 1:
            return {"distributed_strategy": self.alone}
        sizes: JsonObject = {f"{axis}_size": size for axis, size in mesh.to_json().items() if size > 1}
        return {
            "distributed_strategy": self.name,
            "parallelism": sizes
            | ({"sequence_parallel": True} if work.tp > 1 and work.sequence_parallel else {}),
        }

    def collectives(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Return the collectives of one optimizer step: kind → (count, bytes of the unsharded tensors).

        Empty if there is no closed form.
        """
        return {}


def strategy_spec(name: str) -> StrategySpec:
    """Return a strategy's spec by name, or by ``module:SPEC`` for a user-defined one.

    A user-defined class without a spec (``module:Class``) gets the default spec. Raises ConfigError for an
    unknown name, or a spec's module that cannot be imported or imports torch.
    """
    if ":" in name:
        return (_own_spec(name) if is_assigned(name) else None) or StrategySpec(name)
    spec: StrategySpec = STRATEGIES.spec(name)
    return spec


def declared_spec(name: str) -> StrategySpec | None:
    """Return the spec that declares a strategy's properties, built-in or user-defined.

    None for a user-defined class without a spec, for other names, and for a spec that cannot be loaded.
    """
    if name in STRATEGIES.names():
        return strategy_spec(name)
    if ":" not in name:
        return None
    try:
        return _own_spec(name) if is_assigned(name) else None
    except ConfigError:
        return None


def _own_spec(name: str) -> StrategySpec | None:
    had_torch, where = "torch" in sys.modules, "training.distributed_strategy"
    try:
        spec = load_attr(name)
    except ConfigError as error:
        raise ConfigError(*(replace(d, where=where) for d in error.diagnostics)) from error
    if not isinstance(spec, StrategySpec):
        return None
    if "torch" in sys.modules and not had_torch:
        raise ConfigError(codes.STRATEGY_SPEC_TORCH(where, name, module=name.partition(":")[0]))
    return guarded(replace(spec, name=name), where)


def state_form(name: str) -> StateForm:
    """Return a strategy's checkpoint format; a separate one for each user-defined or unknown strategy."""
    form = strategy_spec(name).state_form if name in STRATEGIES.names() or ":" in name else None
    return form or StateForm(name, name)


def strategy_specs() -> tuple[StrategySpec, ...]:
    """Return all built-in specs in table order."""
    return tuple(strategy_spec(name) for name in STRATEGIES.names())


def missing_package(spec: StrategySpec, hardware: Hardware) -> str:
    """Return a required package that is not installed; empty if none is missing or packages are unknown."""
    if hardware.packages is None:
        return ""
    probed = (p for p in spec.requires if p in OPTIONAL_PACKAGES and p not in hardware.packages)
    others = (p for p in spec.requires if p not in OPTIONAL_PACKAGES and util.find_spec(p) is None)
    return next(chain(probed, others), "")


_PLAIN = "plain"


@dataclass(frozen=True)
class StateForm:
    """A checkpoint format.

    ``tensors``: ``plain`` means blocks of whole tensors under the model's own names, readable by every
    strategy with this format, however it shards them. ``loss_scale``: which scaler holds fp16's loss scale;
    their states are incompatible.
    """

    tensors: str
    loss_scale: str


TORCH_FORM = StateForm(_PLAIN, "torch's GradScaler")
DEEPSPEED_FORM = StateForm(_PLAIN, "DeepSpeed's loss scaler")


def why_unreadable(saved: StateForm, reads: StateForm, *, fp16: bool) -> str:
    """Return why a run that ``reads`` one format cannot resume from ``saved``; empty if it can."""
    if saved.tensors != reads.tensors:
        return "state in an engine's own format can be read only by the strategy that wrote it"
    if fp16 and saved.loss_scale != reads.loss_scale:
        return (
            f"fp16 resumes with its loss scale, but {saved.loss_scale} stores other values than"
            f" {reads.loss_scale}"
        )
    return ""
