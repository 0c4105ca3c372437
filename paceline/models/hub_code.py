"""Refuse a model config that makes Transformers run unpinned code from the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def refuse_hub_attention(config: PreTrainedConfig | None, name: str) -> None:
    """Raise ConfigError ``sec.attention_kernel`` if the Hugging Face ``config`` of model ``name`` names an
    attention as ``org/repository``, which Transformers would download and run.
    """
    found = [name for name in _kernel_names(config) if "/" in name]
    if found:
        what = "the model's config.json requests an attention implementation that is code from the hub"
        hint = (
            "remove attn_implementation from its config.json; model.attn_implementation sets the"
            " implementation for this run"
        )
        raise ConfigError(
            rules_codes.SEC_ATTENTION_KERNEL(what, "model.name_or_path", f"{name}: {found[0]}", hint)
        )


def _kernel_names(config: PreTrainedConfig | None) -> Iterator[str]:
    """Yield the attention implementations of a config and of its sub-configs (text, vision, …)."""
    named = getattr(config, "_attn_implementation", None)
    yield from map(str, named.values() if isinstance(named, Mapping) else [named])
    for inner in getattr(config, "sub_configs", None) or ():
        if getattr(config, inner, None) is not None:
            yield from _kernel_names(getattr(config, inner))
