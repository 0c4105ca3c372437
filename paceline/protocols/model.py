"""What a strategy needs to know of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.protocols.divergence import Divergence
from paceline.protocols.roles import Role


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


class RootModule(nn.Module):
    """The root module of a role (contract 1): ``forward(batch, ask)`` computes trunk, head and what is asked, as fp32 tensors by name (see ``Ask``)."""

    hf: Any  # Transformers' model: its classes have no type in common beyond a module

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their plain Hugging Face names, tied ones once."""
        return self.named_parameters()

    def plain_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Persistent buffers under the same names; most language models have none."""
        return iter(())

    def refresh_compute_weights(self) -> None:
        """Re-cast low-precision copies after the masters changed: strategies call it after each optimizer step and import. In fp32 there is nothing to do."""

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside, the model computes as its base does; of a model without an adapter that is the model itself."""
        return nullcontext()

    def compare_with(self, teacher: RootModule, how: Divergence) -> None:
        """From now on ``Ask.DIVERGENCE`` compares with ``teacher``, whose hidden states come with each batch. Called outside of any forward."""
        raise NotImplementedError

    def notes(self) -> Mapping[str, str]:
        """How this module computes, by subject, with the reason: for the log."""
        return {}


class ModelFactory(Protocol):
    """Builds the root module of a role; called by ``Strategy.prepare`` so that the strategy decides where and when."""

    def __call__(self, options: BuildOptions = WHOLE) -> RootModule: ...

    @property
    def role(self) -> Role: ...

    @property
    def hf_config(self) -> Mapping[str, object]: ...
