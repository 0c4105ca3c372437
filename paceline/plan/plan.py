"""The Plan: what will run, immutable, as JSON both ways, with a digest and a reason per decision.

``JobToCheck`` is a job before planning, as checks see it; ``Combination`` holds its choices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.types import Section
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.units import human_count
from paceline.plan import plan_json
from paceline.plan.mesh import BatchSplit, Mesh
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan_json import UNLESS_DEFAULT
from paceline.plan.strategy_options import NO_OPTIONS, EngineOptions, options_from_json
from paceline.plan.timeouts import WaitLimits

#: Prefix of ``choice`` in decisions that are only warnings.
WARNING = "warning "


@dataclass(frozen=True)
class Decision:
    """One decision: subject (a config key or a word), choice, reason.

    ``granted`` is False if a configured setting is not applied.
    """

    subject: str
    choice: str
    reason: str
    granted: bool = True


@dataclass(frozen=True)
class Precision:
    """Dtypes: ``compute`` of forward and backward, ``master`` of weights, ``reduce`` of gradients.

    By torch's names; ``scaler``: fp16 loss scaling; ``fp8``: the layers' products are computed in 8 bits.
    """

    compute: str
    master: str
    reduce: str
    scaler: bool
    reason: str
    fp8: bool = False

    @property
    def half(self) -> str:
        """DeepSpeed's name of the 16-bit ``compute`` dtype; empty for wider ones."""
        return {"bfloat16": "bf16", "float16": "fp16"}.get(self.compute, "")


@dataclass(frozen=True)
class OptimizerSpec:
    """The optimizer. ``name``: Transformers' ``optim``.

    Betas, eps and weight_decay as in ``TrainingArguments``.

    Weight decay applies to matrices only, not to biases and norm weights, as in ``transformers.Trainer``.
    ``target_modules``: whose gradients are projected (``optim_target_modules``); empty: every linear layer.
    ``b_rate_ratio``: the rate of adapters' B and of vectors over that of other weights (LoRA+).
    ``rate_ratios``: path of a module in the trunk -> its rate over that of the text; the longest path counts.
    """

    name: str = "adamw_torch_fused"
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    args: Mapping[str, Json] = field(default_factory=dict)
    target_modules: tuple[str, ...] = ()
    b_rate_ratio: float = field(default=1.0, metadata=UNLESS_DEFAULT)
    rate_ratios: Mapping[str, float] = field(default_factory=dict, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True)
class Quantization:
    """bitsandbytes quantization: ``bits`` per weight, ``type`` nf4 or fp4, ``storage``: torch's dtype name.

    ``double_quant``: the scales are quantized too.
    """

    bits: int
    type: str = "nf4"
    double_quant: bool = True
    storage: str = "uint8"


@dataclass(frozen=True)
class AdapterSpec:
    """LoRA of rank ``r``, or OFT, with peft's names. ``start``: folder of the adapter weights to start from.

    - ``quantization``: of the frozen base layers
    - ``target_parameters``: tensors of fused experts, by suffix
    - ``init_lora_weights``: pissa or olora, whose first factors are taken out of the base weights
    - ``use_dora``: each weight row has a trained magnitude
    - ``oft_block_size``: not 0 for OFT, which rotates so many inputs at a time; the fields after this one are
    set only for peft's folders
    """

    r: int
    alpha: float
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    use_rslora: bool = False
    start: str | None = None
    quantization: Quantization | None = None
    target_parameters: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    init_lora_weights: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    use_dora: bool = field(default=False, metadata=UNLESS_DEFAULT)
    oft_block_size: int = field(default=0, metadata=UNLESS_DEFAULT)
    exclude_modules: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    rank_pattern: Mapping[str, int] = field(default_factory=dict, metadata=UNLESS_DEFAULT)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict, metadata=UNLESS_DEFAULT)
    layers_to_transform: tuple[int, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    layers_pattern: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    unties: bool = field(default=False, metadata=UNLESS_DEFAULT)  # a tied weight that is trained in full


def decomposes(adapter: AdapterSpec | None) -> bool:
    """Whether the adapter begins with a part of each weight under it, which a process must read whole."""
    return adapter is not None and adapter.init_lora_weights is not None


@dataclass(frozen=True)
class DdpOptions:
    """Options of DistributedDataParallel by its names; the last is ZeroRedundancyOptimizer's."""

    bucket_cap_mb: int | None = None
    find_unused_parameters: bool = False
    broadcast_buffers: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    parameters_as_bucket_view: bool = False

    @staticmethod
    def of(training: TrainingSection) -> DdpOptions:
        """Return the options as configured."""
        return DdpOptions(
            training.ddp_bucket_cap_mb,
            bool(training.ddp_find_unused_parameters),
            training.ddp_broadcast_buffers,
            training.ddp_static_graph,
            training.gradient_as_bucket_view,
            training.parameters_as_bucket_view,
        )


@dataclass(frozen=True)
class ModelStates:
    """Bytes of model states that one rank keeps between steps."""

    parameters: int
    gradients: int
    optimizer: int
    counters: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.counters


@dataclass(frozen=True)
class Memory:
    """Model states of the plan. ``copies``: low-precision copies of fp32 weights are kept.

    ``largest``, ``smallest``: states of the rank with most and with least (None: unknown). ``roles``: states
    of each model on the largest rank, if there are several.
    """

    copies: bool
    largest: ModelStates | None = None
    smallest: ModelStates | None = None
    roles: Mapping[str, ModelStates | None] = field(default_factory=dict, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True)
class OtherModel:
    """A further model. ``model``: folder or hub name (None: the weights that training starts from)."""

    trained: bool
    model: str | None = None
    shape: ModelShape | None = None


KEEP = "keep"
ATTENTION, MATMUL = "attention", "matmul"
KEPT_KINDS: Mapping[str, str] = {
    ATTENTION: "the outputs of attention",
    MATMUL: "those of matrix products",
}


def kept_kinds(training: TrainingSection) -> tuple[str, ...]:
    """Return the kinds of operators whose outputs are kept, in the table's order; empty: everything is
    recomputed.
    """
    value = (training.gradient_checkpointing_kwargs or {}).get(KEEP) or ()
    kinds = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(kind for kind in KEPT_KINDS if kind in kinds) if training.gradient_checkpointing else ()


@dataclass(frozen=True)
class Plan:
    """The resolved config and hardware.

    ``strategy`` is never "auto". ``timeout_seconds``: of the process group. ``world_size``: processes over
    all nodes. ``seq_len``: tokens per row. ``engine``: the strategy's resolved options; ``adapter``: LoRA's,
    or None. ``device_indices``: of the visible devices of a node those that train (empty: all).
    ``flash``: what replaces torch's flash kernel (``flash_version``), empty: nothing;
    ``whole_scores``: attention keeps all scores of a document for the backward. ``reference``: source
    of the reference's log-probabilities: ``live``, ``adapter`` (disabled), ``cached``, or empty. ``models``:
    the algorithm's further models by role. ``memory``: model states per rank (None before they are counted).
    ``save_async``: checkpoints are hashed and written during training.
    ``vision``: the whole model is trained on rows with images; else of a composite its language model alone.
    ``config``: the resolved config, for planner and checkpoints; workers use the attributes and properties
    here.
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
    device_indices: tuple[int, ...] = field(default=(), metadata=plan_json.UNLESS_DEFAULT)
    flash: str = field(default="", metadata=plan_json.UNLESS_DEFAULT)
    whole_scores: bool = field(default=False, metadata=plan_json.UNLESS_DEFAULT)
    save_async: bool = field(default=False, metadata=plan_json.UNLESS_DEFAULT)
    vision: bool = field(default=False, metadata=plan_json.UNLESS_DEFAULT)

    @property
    def limits(self) -> WaitLimits:
        """How long ranks wait for another, by phase of the run."""
        return WaitLimits.of(self.config.training)

    @property
    def ranks_per_node(self) -> int:
        """Processes per node."""
        return self.world_size // self.num_nodes

    @property
    def seed(self) -> int:
        """Seed of all random number generators."""
        return self.config.training.seed

    @property
    def model_key(self) -> str:
        """The config key of the model that training starts from."""
        return "model.config" if self.config.model.config else "model.name_or_path"

    @property
    def strategy_options(self) -> Mapping[str, Json]:
        """Options of a user-defined strategy, as configured."""
        return self.config.training.strategy_options

    @property
    def ddp_options(self) -> DdpOptions:
        """Options for torch's DDP and ZeroRedundancyOptimizer."""
        return DdpOptions.of(self.config.training)

    @property
    def recompute_keeps(self) -> tuple[str, ...]:
        """The kinds of operators whose outputs recomputation keeps."""
        return kept_kinds(self.config.training)

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        parts = {"engine": self.engine.to_json(), "config": self.config.to_json()}
        return {**plan_json.to_json(replace(self, engine=NO_OPTIONS)), **parts}

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Plan:
        """Inverse of ``to_json``. Raises ConfigError for a config of another version."""
        parts = {
            "engine": options_from_json(as_object(data.get("engine"))),
            "config": Config.from_json(as_object(data["config"])),
        }
        return plan_json.from_json(Plan, {**data, **parts})

    def dumps(self) -> str:
        """Return the text of ``plan.json``."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"

    def headline(self) -> str:
        """Return one line: algorithm, strategy, processes, model size, batch, precision."""
        where = f"{self.world_size} process{'es' if self.world_size > 1 else ''} on {self.device}"
        size = f", {human_count(self.shape.num_parameters)} parameters" if self.shape else ""
        return (
            f"{self.algorithm} with {self.strategy} in {where}{size},"
            f" {self.batch.global_batch} rows per step, {self.precision.compute}"
        )

    def digest(self) -> str:
        """Return the sha256 of everything that determines the run.

        Run directory, launcher, how it saves, and warnings (such as free disk space) are excluded.
        """
        decisions = tuple(d for d in self.decisions if not d.choice.startswith(WARNING))
        data = {
            key: value
            for key, value in replace(self, decisions=decisions).to_json().items()
            if key not in ("config", "run_dir", "launcher", "save_async")
        }
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


class JobToCheck(Protocol):
    """A job before planning (``rules.rule.Context``): config, algorithm options, and which keys were set."""

    @property
    def config(self) -> Config: ...

    @property
    def world_size(self) -> int | None:
        """Number of processes; None if not known yet."""
        ...

    @property
    def own_options(self) -> Section | None:
        """The config section of the job's algorithm, if given."""
        ...

    def given(self, path: str) -> bool:
        """Whether a layer above the defaults set this key."""
        ...

    def problem(
        self,
        code: Code,
        what: str,
        *paths: str,
        hint: str,
        found: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Diagnostic:
        """Return a problem with some keys, located in the config and with their values."""
        ...

    def at(self, finding: Diagnostic, *paths: str) -> Diagnostic:
        """Return a finding with the place and, where it has no ``found``, the values of some keys."""
        ...


@dataclass(frozen=True)
class Combination:
    """The choices for a run. ``strategy`` and ``mesh`` are None where they could not be chosen.

    ``compiled``: by torch.compile; ``full_eval``: dtypes (``bf16``, ``fp16``) requested for evaluation;
    ``pure_bf16``: weights in bfloat16 alone are requested.
    """

    precision: Precision
    optimizer: OptimizerSpec
    adapter: AdapterSpec | None
    compiled: bool
    full_eval: tuple[str, ...] = ()
    strategy: str | None = None
    mesh: Mesh | None = None
    pure_bf16: bool = False
