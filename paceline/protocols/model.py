"""The interface between strategies and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor, nn

from paceline.core.json_types import Json
from paceline.protocols.roles import Divergence, Role

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, TextStreamer

    from paceline.protocols.images import ImageFeatures

    class HFModel(PreTrainedModel):  # type: ignore[no-untyped-call]
        """Types, which Transformers' methods lack, of a model with a head; for type checkers.

        ``get_output_embeddings`` is of a language model; one for classification returns None.
        """

        config: PreTrainedConfig

        @property
        def base_model(self) -> HFModel: ...

        def get_decoder(self) -> HFModel: ...

        def get_image_features(self, *, return_dict: bool, **inputs: Tensor) -> ImageFeatures: ...

        def get_input_embeddings(self) -> nn.Embedding: ...

        def get_output_embeddings(self) -> nn.Linear: ...

        def eval(self) -> Self: ...

        def generate(
            self, ids: Tensor, **options: Tensor | float | list[int] | TextStreamer | None
        ) -> Tensor: ...


@dataclass(frozen=True)
class BuildOptions:
    """How a strategy needs a model to be built; the defaults are for strategies with whole fp32 parameters on
    the run's device.

    device         where parameters are created; None: the run's device; ``meta`` allocates nothing, the
                   strategy fills them
    fused          kernels that read the weights of several submodules at once; off if an engine gathers or
                   shards single submodules
    engine_casts   the engine gives the forward low-precision weights (FSDP2's policy, DeepSpeed): no copies
                   are kept here
    by_slices      parameters stay on meta where each rank can read its own part of them from the files
                   (``RootModule.slices``); buffers have values, and kernels are chosen as for real weights
    in_step        the engine's collectives follow the forwards of modules, or the order in which gradients
                   come: all ranks must call the same modules
    packs          layers of a 4-bit base stay empty if they can be read one by one; the strategy packs each
    """

    device: torch.device | None = None
    fused: bool = True
    engine_casts: bool = False
    by_slices: bool = False
    packs: bool = False
    in_step: bool = False


WHOLE = BuildOptions()


class Slices(Protocol):
    """Read blocks of a model's parameters from its files. ``more``: rows of a parameter beyond those of the
    files; one rank computes them (``grow``) and sends them to the others.
    """

    @property
    def more(self) -> dict[str, Tensor]: ...

    def grow(self, seed: int) -> None:
        """Make the rows of ``more``, in fp32, from the seed and the files."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the block of ``shape`` at ``offsets`` of the parameter, in the file's dtype, on the CPU."""


class RootModule(nn.Module):
    """The root module of a role (contract 1): ``forward(batch, required)`` runs trunk and head and returns
    the outputs in ``required`` by name (see ``Output``).
    """

    slices: Slices | None = None  # where parameters on meta can be read in parts
    unread: bool = False  # parameters are NaN until a checkpoint is imported: nothing is compared by them

    if TYPE_CHECKING:

        @property
        def hf(self) -> HFModel: ...

    @property
    def parts(self) -> Sequence[HFModel]:
        """The Hugging Face models inside: one, or one per pipeline stage of this rank."""
        return (self.hf,)

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield parameters under their plain Hugging Face names, tied ones once."""
        return self.named_parameters()

    def plain_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield persistent buffers under the same names; most language models have none."""
        return iter(())

    def refresh_compute_weights(self) -> None:
        """Cast the masters into the low-precision copies again; strategies call it after each optimizer step
        and import. A no-op in fp32.
        """

    def computing(self, device_type: str) -> torch.autocast | nullcontext[None]:
        """Return the context for calling ``hf`` directly (decoding), so that it computes in the same dtype as
        ``forward``.
        """
        return nullcontext()

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside the context the model computes as its base does; without an adapter it does not change."""
        return nullcontext()

    def compare_with(self, teacher: RootModule, how: Divergence) -> None:
        """Set the teacher of ``Output.DIVERGENCE``, whose hidden states will come with each batch. Call
        outside of any forward.
        """
        raise NotImplementedError

    def expert_tokens(self) -> Tensor | None:
        """Return how many tokens each expert of each layer got in training since the last call, int64
        [layers, experts] on the device. None: no mixture, or not counted.
        """
        return None

    def note(self, subject: str, text: str) -> None:
        """Record how this module was run, for ``notes``. The default records nothing."""

    def notes(self) -> Mapping[str, str]:
        """Return how this module computes, and why, by subject: for the log."""
        return {}


class ModelFactory(Protocol):
    """Builds the root module of a role; ``Strategy.prepare`` calls it, so that the strategy decides where and
    when to build.
    """

    def __call__(self, options: BuildOptions = WHOLE) -> RootModule: ...

    @property
    def role(self) -> Role: ...

    @property
    def hf_config(self) -> Mapping[str, Json]: ...
