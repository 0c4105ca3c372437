"""Packed attention inside Hugging Face models: documents of a flat batch do not attend to each other.

Registered once as ``paceline`` in transformers' own registries. A packed forward passes a 4-D placeholder
mask, which transformers does not change and ``packed_attention`` ignores. Any other forward (generation) uses
the masks and the function of ``sdpa``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.models import codes
from paceline.models.attention.compiled_attention import traced_attention
from paceline.models.attention.context_parallel_attention import (
    context_attention,
    tail_and_rest,
)
from paceline.models.attention.flash_varlen import documents_varlen
from paceline.models.attention.flex_attention import documents_flex
from paceline.models.attention.kernel_choice import AttentionKernels
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    CpuDocuments,
    DocumentOptions,
    documents_generic,
    documents_padded,
    scores_attention,
)
from paceline.models.attention.sequence_info import (
    PROJECTED,
    RECORD,
    PackedSequenceInfo,
    slot_of,
)
from paceline.models.compute_dtype import product_dtype
from paceline.plan.model.kernels import DOCUMENT_FLASH, FLEX, PADDED_SDPA, VARLEN_FLASH
from paceline.plan.model.supported import obstacle

PACKED_ATTENTION = "paceline"


@dataclass(frozen=True)
class AttentionChoice:
    """How documents are kept apart: ``packed`` (per-document attention inside the model) or ``padded`` (the
    trunk gets one row per document).

    ``implementation`` is the value for the Hugging Face config; ``reason`` is shown in the Plan.
    """

    layout: str
    implementation: str
    reason: str


def choose_attention(
    requested: str, hf_config: Mapping[str, Json], supports_backend: bool
) -> AttentionChoice:
    """Choose the attention of a model. ``requested`` is ``attn_implementation``: ``auto``, ``paceline``, or a
    Transformers name.

    Raises ConfigError ``models.attention_not_packable`` when ``paceline`` is set and the model's documents
    cannot be kept apart. ``supports_backend``: its class takes a registered attention function, or its layers
    keep them apart otherwise.
    """
    if requested not in ("auto", PACKED_ATTENTION):
        return AttentionChoice(
            "padded",
            requested,
            f"{requested} was requested: Transformers' own function, one padded row per document",
        )
    unregistered = f"model_type {hf_config.get('model_type')} does not accept a registered attention function"
    why = obstacle(hf_config) if supports_backend else unregistered
    if why is None:
        return AttentionChoice(
            "packed", PACKED_ATTENTION, "packed: documents of a row do not attend to each other"
        )
    if requested == PACKED_ATTENTION:
        raise ConfigError(codes.MODELS_ATTENTION_NOT_PACKABLE("model.attn_implementation", why))
    return AttentionChoice("padded", "auto", f"{why}: one padded row per document")


def register() -> None:
    """Register ``paceline`` with transformers (idempotent)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    # For forwards that are not packed: generation builds SDPA's masks under our name.
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


def placeholder_mask(device: torch.device) -> Tensor:
    """Return a 4-D mask that transformers takes as already prepared, so that it builds none of its own."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature: query [B, H, T, D], key and value [B, K, T, D] -> [B, T, H, D].

    Outside of a root module's packed forward (generation with a cache) this is transformers' SDPA.
    """
    # ``qkv`` may be recording a probe; without a layout no packed forward is running (generation).
    slot, record = slot_of(module), getattr(module, RECORD, None)
    layout, kernels = (None, None) if slot is None else (slot.current, slot.kernels)
    if record is not None:
        record.update(scaling=scaling, dropout=dropout, **kwargs)
        record[PROJECTED] = (query, key, value)
    if layout is None:
        return _unpacked(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    if kwargs.get("position_bias") is not None:
        raise ConfigError(codes.MODELS_POSITION_BIAS(type(module).__name__))
    if query.dtype != value.dtype:  # under autocast: rotated by an fp32 cosine
        query, key = query.to(value.dtype), key.to(value.dtype)
    # Options that a class passes to its attention function, or keeps on the module.
    options = AttentionOptions(
        scaling if scaling is not None else query.shape[-1] ** -0.5,
        dropout,
        # A class that passes None means no window in this layer, whatever its attribute says.
        kwargs["sliding_window"] if "sliding_window" in kwargs else getattr(module, "sliding_window", None),
        kwargs.get("softcap"),
        kwargs.get("s_aux"),
    )
    if torch.compiler.is_compiling():
        return traced_attention(kernels, query, key, value, layout, options), None
    # Shared prompts: expand to whole documents for attention, then keep the computed tokens only.
    if layout.shared is not None:
        query, key, value = (layout.shared.full(x, 2) for x in (query, key, value))
    attend: Callable[..., Tensor] = partial(document_attention, kernels=kernels)
    if layout.context is not None:
        attend = partial(context_attention, attend)
    out = attend(query, key, value, layout, options)
    if layout.shared is not None:
        out = layout.shared.kept(out, 2)
    return out.transpose(1, 2).contiguous(), None  # a no-op after CPU kernels; some classes call view()


@torch.compiler.disable
def document_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedSequenceInfo,
    options: AttentionOptions,
    *,
    kernels: AttentionKernels | None = None,
) -> Tensor:
    """Dispatch to the kernel that fits the device, dtype and options: [1, H, T, D] in, [1, H, T, D] out.

    ``kernels`` chooses, and keeps the kernel's name.
    """
    # Positions that see ahead (images) do so within the layer's window only.
    layout = layout.seen_in(options.window)
    # A window that covers the longest document is none.
    if options.window is not None and options.window >= layout.longest_keys:
        options = options._replace(window=None)
    scale, dropout, window, softcap, sinks = options
    kernels = kernels or AttentionKernels()
    kernel = kernels.choose(
        query,
        value,
        window=window is not None,
        softcap=softcap is not None,
        sinks=sinks is not None,
        dropout=dropout > 0.0,
        ahead=bool(layout.blocks),
    )
    # Fewer queries than keys (context parallelism): other kernels align them at the start, not at the end.
    if layout.keys is not None and kernel not in (VARLEN_FLASH, FLEX):
        inner = partial(document_attention, kernels=kernels)
        return tail_and_rest(inner, query, key, value, layout, options)
    if kernel == DOCUMENT_FLASH:
        product = product_dtype(query.dtype, query.device)
        how = DocumentOptions(layout.bounds, scale, product, layout.causal)
        return CpuDocuments.apply(query, key, value, how)
    if kernel == VARLEN_FLASH:
        return documents_varlen(query, key, value, layout, options)
    if kernel == FLEX:
        seen = layout.visible(window)
        return documents_flex(
            kernels.flex(), query, key, value, seen, scale=scale, softcap=softcap, sinks=sinks
        )
    if kernel == PADDED_SDPA:
        return documents_padded(query, key, value, layout, options)
    return documents_generic(query, key, value, layout, options)


def _unpacked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: Mapping[str, Any],
) -> tuple[Tensor, None]:
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    if softcap is not None or sinks is not None:  # SDPA knows neither
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        options = AttentionOptions(scale, dropout, softcap=softcap, sinks=sinks)
        return scores_attention(query, key, value, mask, options).transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    function: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward
    return function(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)
