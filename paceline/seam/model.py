"""What a strategy needs to know of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor, nn

from paceline.seam.batch import Batch
from paceline.seam.roles import Ask, Role


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

    def __call__(self) -> nn.Module: ...

    @property
    def role(self) -> Role: ...

    @property
    def hf_config(self) -> Mapping[str, object]: ...
