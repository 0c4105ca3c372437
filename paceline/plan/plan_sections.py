"""Parts of a plan: optimizer, adapter, model states, further models, what recomputation keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.config.sections.training import TrainingSection
from paceline.core.json_types import Json
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan_json import UNLESS_DEFAULT


@dataclass(frozen=True)
class OptimizerSpec:
    """The optimizer. ``name``: Transformers' ``optim``.

    Betas, eps and weight_decay as in ``TrainingArguments``.

    Weight decay applies to matrices only, not to biases and norm weights, as in ``transformers.Trainer``.
    ``target_modules``: whose gradients are projected (``optim_target_modules``); empty: every linear layer.
    """

    name: str = "adamw_torch_fused"
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    args: Mapping[str, Json] = field(default_factory=dict)
    target_modules: tuple[str, ...] = ()


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
    """LoRA of rank ``r``, with peft's names. ``start``: folder of the adapter weights to start from.

    ``quantization``: of the frozen base layers; ``target_parameters``: tensors of fused experts, by suffix;
    ``init_lora_weights``: pissa or olora, whose first factors are taken out of the base weights; what follows
    it comes from peft's folders alone.
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
    given = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(kind for kind in KEPT_KINDS if kind in given) if training.gradient_checkpointing else ()
