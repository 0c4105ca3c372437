"""Gradient checkpointing per layer: a layer's activations are recomputed in the backward instead of kept. The
outputs of chosen operators may be kept (selective activation checkpointing, as in
``torch.utils.checkpoint``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.sequence_info import AttentionContext
from paceline.plan.plan import ATTENTION, MATMUL

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

# by kind, the operators (namespace, name) that compute it; those that write into a given output are not kept
_OPERATORS = {
    ATTENTION: {
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
        ("aten", "_scaled_dot_product_flash_attention"),
        ("aten", "_scaled_dot_product_efficient_attention"),
        ("aten", "_scaled_dot_product_cudnn_attention"),
        ("aten", "_flash_attention_forward"),
        ("torch_attn", "_varlen_attn"),
    },
    MATMUL: {("aten", "mm"), ("aten", "addmm"), ("aten", "linear")},  # not those of experts
}


def enable_recompute(hf: HFModel, slot: AttentionContext, keep: Collection[str] = ()) -> None:
    """Enable non-reentrant checkpointing of every layer of a Hugging Face model.

    ``keep``: kinds of operators (``plan.plan.KEPT_KINDS``) whose outputs are kept; all else is
    recomputed. A recomputation runs under the document layout of its own forward, even if other
    forwards came in between. Raises ConfigError ``models.no_recompute`` if the model class has no
    checkpointing.
    """
    if not getattr(hf, "supports_gradient_checkpointing", False):
        raise ConfigError(codes.MODELS_NO_RECOMPUTE("training.gradient_checkpointing", type(hf).__name__))
    kept = frozenset().union(*(_OPERATORS[kind] for kind in keep))

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # the layout of this forward: by the backward another micro-batch's may be set
        layout = slot.packed_sequences(slot.current)
        if not kept:
            return nullcontext(), layout
        make: Callable[..., Any] = create_selective_checkpoint_contexts
        forward, again = make(_policy(kept))
        return forward, _both(layout, again)

    # Newer versions of Transformers warn at the older name
    newer, older = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    enable: Callable[[dict[str, object]], None] = getattr(hf, newer if hasattr(hf, newer) else older)
    enable({"use_reentrant": False, "context_fn": contexts})


def _policy(kept: Collection[tuple[str, str]]) -> Callable[..., CheckpointPolicy]:
    """Return the policy that keeps the outputs of these operators."""

    def decide(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        schema = operator._schema
        is_kept = tuple(schema.name.split("::")) in kept and not schema.is_mutable
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield
