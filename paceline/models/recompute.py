"""Gradient checkpointing per layer: a layer's activations are recomputed in the backward instead of kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention_context import AttentionContext

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def enable_recompute(hf: HFModel, slot: AttentionContext) -> None:
    """Enable non-reentrant checkpointing of every layer of a Hugging Face model.

    A recomputation runs under the document layout of its own forward, even if other forwards came in between.
    Raises ConfigError ``models.no_recompute`` if the model class has no checkpointing.
    """
    if not getattr(hf, "supports_gradient_checkpointing", False):
        raise ConfigError(
            codes.MODELS_NO_RECOMPUTE(
                what="this model class does not support gradient checkpointing",
                where="training.gradient_checkpointing",
                found=type(hf).__name__,
                hint="gradient_checkpointing: false",
            )
        )

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), slot.packed_sequences(slot.current)

    hf.gradient_checkpointing_enable(  # type: ignore[no-untyped-call]
        gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": contexts}
    )
