"""Resolved options of each strategy (``Plan.engine``), one dataclass per strategy that has options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from paceline.core.json_types import Json, JsonObject
from paceline.plan.plan_json import UNLESS_DEFAULT, from_json, to_json


@dataclass(frozen=True)
class EngineOptions:
    """Options of a strategy without any, and the interface of all options."""

    @property
    def places(self) -> tuple[str, str]:
        """Where optimizer states (with masters and gradients) and weights are kept: none (device), cpu or
        nvme."""
        return "none", "none"

    @property
    def own_masters(self) -> bool:
        """Whether the engine keeps fp32 masters separate from the weights, with the optimizer."""
        return False

    @property
    def stages_a_rank(self) -> int:
        """Pipeline stages per rank."""
        return 1

    @property
    def sharded(self) -> FsdpOptions | None:
        """FSDP2 options for the model (or each stage); None if another engine shards it."""
        return None

    def built_whole(self) -> EngineOptions:
        """Return the options for a start at which every rank builds the whole model."""
        return self

    @classmethod
    def own(cls, engine: EngineOptions) -> Self:
        """Return ``engine`` as this class; it was resolved by the strategy with these options."""
        assert isinstance(engine, cls)
        return engine

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        return to_json(self)


NO_OPTIONS = EngineOptions()


@dataclass(frozen=True)
class OwnOptions(EngineOptions):
    """Options of a user-defined strategy, uninterpreted."""

    values: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return dict(self.values)


@dataclass(frozen=True)
class ThreadOptions(EngineOptions):
    """``nn.DataParallel``: number of devices of the one process."""

    devices: int = 1


@dataclass(frozen=True)
class Wrap:
    """Which modules FSDP gathers as one unit: ``policy`` is ``transformer``, ``size`` or ``none``.

    ``transformer``: layers of ``classes``, or the model's own; ``size``: modules of at least
    ``min_num_params``.
    """

    policy: str = "transformer"
    classes: tuple[str, ...] = ()
    min_num_params: int = 0

    @property
    def unusual(self) -> bool:
        """Whether units are neither the model's layers nor the whole model."""
        return self.policy == "size" or any(not name.endswith(("Layer", "Block")) for name in self.classes)


@dataclass(frozen=True)
class FsdpOptions(EngineOptions):
    """FSDP2; the defaults are full_shard's.

    ``reshard_after_forward``: free a unit's parameters after its forward and gather them again for its
    backward. ``whole_gradient_bytes``: up to this size a rank accumulates unsharded gradients over a window's
    micro-batches and reduces them once; above it, it reduce-scatters after every micro-batch.
    ``backward_prefetch``: ``backward_pre`` gathers the next unit's parameters before the current unit's
    backward; otherwise after it has been issued. ``gather_for_generation``: every rank holds the whole model
    during generation.
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

    def built_whole(self) -> FsdpOptions:
        return replace(self, meta_start=False)


@dataclass(frozen=True)
class PipelineOptions(EngineOptions):
    """The schedule (values of ``pp_schedule``), stages per rank, and FSDP2 options of each stage."""

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
    """``config`` is passed to ``deepspeed.initialize`` (empty: only stage, batch and precision)."""

    zero_stage: int = 0
    autotp_size: int = 1
    sequence_parallel_size: int = 1
    offload_optimizer: str = "none"
    offload_param: str = "none"
    config: Mapping[str, Json] = field(default_factory=dict)
    gather_for_generation: bool = field(default=True, metadata=UNLESS_DEFAULT)

    @property
    def places(self) -> tuple[str, str]:
        return self.offload_optimizer, self.offload_param

    @property
    def own_masters(self) -> bool:
        return self.zero_stage > 0


_REPORTED_BY: Mapping[str, type[EngineOptions]] = {
    "zero_stage": DeepSpeedOptions,
    "schedule": PipelineOptions,
    "sharding": FsdpOptions,
    "devices": ThreadOptions,
}


def options_from_json(data: Mapping[str, Json]) -> EngineOptions:
    """Inverse of ``EngineOptions.to_json``; the class is recognized by a key that only it has."""
    kind = next((kind for key, kind in _REPORTED_BY.items() if key in data), None)
    if kind is None:
        return OwnOptions(dict(data)) if data else EngineOptions()
    return from_json(kind, data)
