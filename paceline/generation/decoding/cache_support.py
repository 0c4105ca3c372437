"""Whether a model's answers can be written with our cache: asked of its class and its layers' code."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import TYPE_CHECKING, get_args

from paceline.core.errors import ConfigError
from paceline.generation import codes
from paceline.generation.decoding.key_value_cache import preallocated_cache
from paceline.models.attention.sparse_indexer import selects_keys
from paceline.models.recurrent_layers import ByDocument, state_layers

if TYPE_CHECKING:
    from torch import nn
    from transformers import DynamicCache

    from paceline.protocols.model import HFModel

STATES = "cache_params"  # the cache of a model of states alone
_NAMES = ("past_key_values", STATES)  # of a model's cache
_CHUNKED = "chunked_attention"
_KEPT = frozenset({"update_conv_state", "update_recurrent_state"})  # by which a layer keeps states in it


def cache_for(hf: HFModel, room: int) -> DynamicCache:
    """Return an empty cache for ``hf`` with room for so many tokens.

    Raises ConfigError ``generation.stateful`` if the model keeps what it knows of earlier tokens elsewhere.
    """
    from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionCacheLayerMixin

    found = _elsewhere(hf)
    if found is None:
        cache = preallocated_cache(hf.config, room)
        known = (DynamicLayer, LinearAttentionCacheLayerMixin, DummyLayer)
        strange = [type(layer).__name__ for layer in cache.layers if not isinstance(layer, known)]
        if not strange:
            return cache
        found = f"its cache has layers of a kind of its own ({strange[0]})"
    raise ConfigError(
        codes.GENERATION_STATEFUL(
            "rollouts need a model whose keys, values and states lie in Transformers' cache, so that prompts"
            " of several lengths can be answered together",
            "model",
            f"{type(hf).__name__}: {found}",
            "use another family (llama, qwen3, qwen3_5_text, granitemoehybrid, mamba2, …)",
        )
    )


def cache_name(hf: HFModel) -> str:
    """Return the parameter by which the model's forward takes a cache; empty if it takes none."""
    names = inspect.signature(type(hf).forward).parameters
    return next((name for name in _NAMES if name in names), "")


def counts_places(hf: HFModel) -> bool:
    """Whether attention counts a token's place among all that the cache holds, padding too: in chunks
    (Llama 4), or in blocks of keys that are selected or compressed. Prompts of several lengths are then
    answered apart.
    """
    text = hf.config.get_text_config()
    chunked = getattr(text, "attention_chunk_size", None) or _CHUNKED in (
        getattr(text, "layer_types", None) or ()
    )
    return bool(chunked) or selects_keys(hf)


def _elsewhere(hf: HFModel) -> str | None:
    """Return where the model keeps states other than in the cache it is given, or None."""
    if not cache_name(hf):
        return "its forward takes no cache"
    if own := _own_cache(hf):
        return f"its forward takes a cache of its own kind ({own})"
    lost = next((layer for layer in state_layers(hf) if not _keeps(layer)), None)
    return None if lost is None else f"{_own_class(lost).__name__} keeps its state by itself"


def _own_cache(hf: HFModel) -> str:
    """Return the class of cache that the model's forward declares, if it is not Transformers' (xLSTM)."""
    from transformers import Cache

    declared = inspect.signature(type(hf).forward).parameters[cache_name(hf)].annotation
    kinds = [kind for kind in get_args(declared) or (declared,) if isinstance(kind, type)]
    others = [kind for kind in kinds if kind is not NoneType and not issubclass(kind, Cache)]
    return others[0].__name__ if others and len(others) + (NoneType in kinds) == len(kinds) else ""


def _keeps(layer: nn.Module) -> bool:
    """Whether a layer's code keeps its state in a cache."""
    forward = inspect.unwrap(_own_class(layer).forward)
    return not _KEPT.isdisjoint(forward.__code__.co_names)


def _own_class(layer: nn.Module) -> type[nn.Module]:
    """Return the class that a layer had before it was swapped."""
    kinds = type(layer).__mro__
    return kinds[2] if isinstance(layer, ByDocument) else kinds[0]
