"""Parts of a plan: the optimizer, what a rank keeps from step to step, models beside the one that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.config.sections.training import TrainingSection
from paceline.plan.codec import UNLESS_DEFAULT
from paceline.plan.model.shape import ModelShape


@dataclass(frozen=True)
class OptimizerSpec:
    """``name`` is Transformers' ``optim`` (``adamw_torch_fused``, ``sgd``, …); betas, eps and weight_decay as in ``TrainingArguments``.

    Weight decay applies to matrices only (biases and norm weights are left out), as ``transformers.Trainer`` does.
    """

    name: str = "adamw_torch_fused"
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Quantization:
    """Weights of ``bits`` each, of a ``type`` of bitsandbytes' (nf4, fp4); ``double_quant``: their scales are packed too; ``storage``: torch's name."""

    bits: int
    type: str = "nf4"
    double_quant: bool = True
    storage: str = "uint8"


@dataclass(frozen=True)
class AdapterSpec:
    """LoRA of rank ``r``, by peft's names; ``start``: the folder whose weights it goes on from; ``quantization`` of the frozen layers below it."""

    r: int
    alpha: float
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    use_rslora: bool = False
    start: str | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True)
class EngineKnobs:
    """Single keys of ``training`` that torch's own engines take by these names: DistributedDataParallel's, and the last ZeroRedundancyOptimizer's."""

    bucket_cap_mb: int | None = None
    find_unused_parameters: bool = False
    broadcast_buffers: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    parameters_as_bucket_view: bool = False

    @staticmethod
    def of(training: TrainingSection) -> EngineKnobs:
        """As they are written."""
        return EngineKnobs(
            training.ddp_bucket_cap_mb,
            bool(training.ddp_find_unused_parameters),
            training.ddp_broadcast_buffers,
            training.ddp_static_graph,
            training.gradient_as_bucket_view,
            training.parameters_as_bucket_view,
        )


@dataclass(frozen=True)
class ModelStates:
    """Bytes that one rank keeps from step to step."""

    parameters: int
    gradients: int
    optimizer: int
    counters: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.counters


@dataclass(frozen=True)
class Memory:
    """``copies``: whether low-precision copies of fp32 weights are kept; the states of the rank that keeps most and of the one that keeps least (None: not
    known), and those of each role on the largest, where there are several."""

    copies: bool
    largest: ModelStates | None = None
    smallest: ModelStates | None = None
    roles: Mapping[str, ModelStates | None] = field(default_factory=dict, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True)
class OtherModel:
    """A model beside the one that is trained first; ``model``: a folder or hub name (None: the one that training starts from)."""

    trained: bool
    model: str | None = None
    shape: ModelShape | None = None
