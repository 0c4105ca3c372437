"""What a strategy needs to know of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.seam.batch import Batch
from paceline.seam.roles import Ask, Role


@dataclass(frozen=True)
class BuildOptions:
    """How a strategy wants a model built; the defaults are for strategies that keep whole fp32 parameters on the run's device.

    device         where parameters are made; None: the run's device. ``meta`` allocates nothing: the strategy fills them
    fused          kernels that read the weights of several submodules at once; off where an engine gathers or shards a submodule at a time
    engine_casts   the engine hands the low-precision weights to the forward itself (FSDP2's policy, DeepSpeed): no copies are kept here
    """

    device: torch.device | None = None
    fused: bool = True
    engine_casts: bool = False


WHOLE = BuildOptions()


class RoleModule(Protocol):
    """The root module of a role (contract 1): an ``nn.Module`` whose forward computes trunk, head and what is asked."""

    def __call__(self, batch: Batch, ask: frozenset[Ask]) -> dict[str, Tensor]: ...

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their plain Hugging Face names, tied ones once."""
        ...

    def refresh_compute_weights(self) -> None:
        """Re-cast low-precision copies after the masters changed (a no-op in fp32). Strategies call it after each optimizer step and import."""
        ...


class ModelFactory(Protocol):
    """Builds the root module of a role; called by ``Strategy.prepare`` so that the strategy decides where and when."""

    def __call__(self, options: BuildOptions = WHOLE) -> nn.Module: ...

    @property
    def role(self) -> Role: ...

    @property
    def hf_config(self) -> Mapping[str, object]: ...
