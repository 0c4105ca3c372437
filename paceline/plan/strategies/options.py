"""What a strategy's own options came to (``Plan.engine``), one dataclass a strategy that has some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.plan.codec import UNLESS_DEFAULT, from_json, to_json


@dataclass(frozen=True)
class EngineOptions:
    """Of a strategy without any; what everybody may ask of every strategy's."""

    @property
    def places(self) -> tuple[str, str]:
        """Where optimizer (masters and gradients with it) and weights lie between steps: none (the device), cpu or nvme."""
        return "none", "none"

    @property
    def own_masters(self) -> bool:
        """Whether fp32 masters lie beside the weights, with the optimizer."""
        return False

    @property
    def stages_a_rank(self) -> int:
        """Stages of a pipeline that each rank has."""
        return 1

    @property
    def sharded(self) -> FsdpOptions | None:
        """How FSDP2 shares a model (or each stage of it) out; None where another engine does."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        found: dict[str, Any] = to_json(self)
        return found


NO_OPTIONS = EngineOptions()


@dataclass(frozen=True)
class OwnOptions(EngineOptions):
    """Those of a user's own strategy, which alone knows them."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dict(self.values)


@dataclass(frozen=True)
class ThreadOptions(EngineOptions):
    """``nn.DataParallel``: devices of the one process."""

    devices: int = 1


@dataclass(frozen=True)
class Wrap:
    """What is gathered as one: ``transformer`` layers (of ``classes``, or the model's own), modules by ``size`` (from ``min_num_params``), or ``none``."""

    policy: str = "transformer"
    classes: tuple[str, ...] = ()
    min_num_params: int = 0


@dataclass(frozen=True)
class FsdpOptions(EngineOptions):
    """FSDP2; the defaults are full_shard's.

    reshard_after_forward  parameters are freed after the forward of their unit and gathered again for its backward
    whole_gradient_bytes  up to this size a rank keeps whole gradients over the micro-batches of a window and reduces them once; above, its piece
                      after every micro-batch
    backward_prefetch ``backward_pre`` gathers a unit's parameters before the backward of the unit that runs ahead of it; else after it has been issued
    gather_for_generation  the whole model lies on every rank while answers are written
    """

    sharding: str = "full_shard"
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    wrap: Wrap = Wrap()
    backward_prefetch: str = "backward_pre"
    forward_prefetch: bool = False
    meta_start: bool = False
    sequence_parallel: bool = False
    loss_parallel: bool = False
    cp_method: str = "ulysses"
    whole_gradient_bytes: int = field(default=2**30, metadata=UNLESS_DEFAULT)
    gather_for_generation: bool = field(default=True, metadata=UNLESS_DEFAULT)

    @property
    def places(self) -> tuple[str, str]:
        return ("cpu", "cpu") if self.cpu_offload else ("none", "none")

    @property
    def sharded(self) -> FsdpOptions | None:
        return self


@dataclass(frozen=True)
class PipelineOptions(EngineOptions):
    """``schedule`` by the key's word, stages of each rank, and how each stage is shared out."""

    schedule: str = "1f1b"
    stages_per_rank: int = 1
    fsdp: FsdpOptions = FsdpOptions()

    @property
    def stages_a_rank(self) -> int:
        return self.stages_per_rank

    @property
    def sharded(self) -> FsdpOptions | None:
        return self.fsdp


@dataclass(frozen=True)
class DeepSpeedOptions(EngineOptions):
    """``config`` is what ``deepspeed.initialize`` is given (empty: stage, batch and precision alone)."""

    zero_stage: int = 0
    autotp_size: int = 1
    sequence_parallel_size: int = 1
    offload_optimizer: str = "none"
    offload_param: str = "none"
    config: Mapping[str, Any] = field(default_factory=dict)
    gather_for_generation: bool = field(default=True, metadata=UNLESS_DEFAULT)

    @property
    def places(self) -> tuple[str, str]:
        return self.offload_optimizer, self.offload_param

    @property
    def own_masters(self) -> bool:
        return self.zero_stage > 0


_TOLD_BY: Mapping[str, type[EngineOptions]] = {
    "zero_stage": DeepSpeedOptions,
    "schedule": PipelineOptions,
    "sharding": FsdpOptions,
    "devices": ThreadOptions,
}


def options_from_json(data: Mapping[str, Any]) -> EngineOptions:
    """The inverse of ``EngineOptions.to_json``: which options they are is told by a key that only these have."""
    kind = next((kind for key, kind in _TOLD_BY.items() if key in data), None)
    if kind is None:
        return OwnOptions(dict(data)) if data else EngineOptions()
    return from_json(kind, data)
