"""Needs of a model's layers in decoding: a cache that keeps their states, and bounded time steps.

The model's class and its layers' code show whether our cache works. Transformers bounds a Mamba-2 layer's
time step in a forward over several tokens (``dt_limit``), but not in a step of one token: sampling would use
another model than training.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.generation import codes
from paceline.generation.decoding.key_value_cache import preallocated_cache
from paceline.models.attention.sparse_indexer import selects_keys
from paceline.models.recurrent_layers import PerDocumentLayer, state_layers

if TYPE_CHECKING:
    from transformers import DynamicCache

    from paceline.protocols.model import HFModel

STATES = "cache_params"  # the cache of a model of states alone
_NAMES = ("past_key_values", STATES)  # of a model's cache
_CHUNKED = "chunked_attention"
_KEPT = frozenset({"update_conv_state", "update_recurrent_state"})  # by which a layer keeps states in it
_LIMIT, _PROJECTION, _BIAS, _SCALE = "time_step_limit", "in_proj", "dt_bias", "mup_vector"


def cache_for(hf: HFModel, room: int) -> DynamicCache:
    """Return an empty cache for ``hf`` with room for ``room`` tokens.

    Raises ConfigError ``generation.stateful`` if the model keeps its state of earlier tokens elsewhere.
    """
    from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionCacheLayerMixin

    reason = _elsewhere(hf)
    if reason is None:
        cache = preallocated_cache(hf.config, room)
        supported = (DynamicLayer, LinearAttentionCacheLayerMixin, DummyLayer)
        strange = [type(layer).__name__ for layer in cache.layers if not isinstance(layer, supported)]
        if not strange:
            return cache
        reason = f"its cache has layers of a kind of its own ({strange[0]})"
    raise ConfigError(
        codes.GENERATION_STATEFUL(
            "rollouts need a model whose keys, values and states lie in Transformers' cache, so that prompts"
            " of several lengths can be answered together",
            "model",
            f"{type(hf).__name__}: {reason}",
            "use another family (llama, qwen3, qwen3_5_text, granitemoehybrid, mamba2, …)",
        )
    )


def cache_name(hf: HFModel) -> str:
    """Return the parameter by which the model's forward takes a cache; empty if it takes none."""
    names = inspect.signature(type(hf).forward).parameters
    return next((name for name in _NAMES if name in names), "")


def counts_places(hf: HFModel) -> bool:
    """Whether attention counts a token's position in the cache with padding. Chunked attention (Llama 4)
    does, and blocks of selected or compressed keys. Prompts of different lengths then need separate batches.
    """
    text = hf.config.get_text_config()
    return bool(
        getattr(text, "attention_chunk_size", None) or _CHUNKED in (getattr(text, "layer_types", None) or ())
    ) or selects_keys(hf)


def _elsewhere(hf: HFModel) -> str | None:
    """Return where the model keeps states other than in the cache it is given, or None."""
    if not cache_name(hf):
        return "its forward takes no cache"
    if cache_class := _own_cache(hf):
        return f"its forward takes a cache of its own kind ({cache_class})"
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
    return not _KEPT.isdisjoint(inspect.unwrap(_own_class(layer).forward).__code__.co_names)


def _own_class(layer: nn.Module) -> type[nn.Module]:
    """Return the class that a layer had before it was swapped."""
    kinds = type(layer).__mro__
    return kinds[2] if isinstance(layer, PerDocumentLayer) else kinds[0]


if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


@contextmanager
def bounded_time_steps(hf: HFModel) -> Iterator[None]:
    """Inside, every forward of Mamba-2 layers bounds the time step.

    Their input projection ends in the time step of each head, before bias and softplus. Softplus is
    monotonic, so bounding the step there changes nothing where the layer bounds it again.
    """
    hooks = [
        getattr(layer, _PROJECTION).register_forward_hook(_Bound(layer))
        for layer in hf.modules()
        if _limits(layer) is not None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _limits(layer: nn.Module) -> tuple[float, float] | None:
    """Return the least and the largest time step of a layer; None for layers without."""
    limits = getattr(layer, _LIMIT, None)
    if not (isinstance(limits, Sequence) and isinstance(getattr(layer, _PROJECTION, None), nn.Module)):
        return None
    low, high = float(limits[0]), float(limits[1])
    return None if low <= 0.0 and math.isinf(high) else (low, high)


class _Bound:
    """A forward hook of the input projection of ``layer``."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        limits, bias = _limits(self.layer), getattr(self.layer, _BIAS)
        assert limits is not None
        scale = getattr(self.layer, _SCALE, None)  # Falcon-H1 multiplies the projection by it
        least, most = (_before(limit, bias, scale).to(output.dtype) for limit in limits)
        heads = bias.shape[0]
        return torch.cat((output[..., :-heads], output[..., -heads:].clamp(least, most)), dim=-1)


def _before(limit: float, bias: Tensor, scale: Tensor | None) -> Tensor:
    """Return what becomes ``limit`` by scale, bias and softplus: [heads]."""
    inverse = limit if math.isinf(limit) else math.log(math.expm1(limit)) if limit > 0 else -math.inf
    unbiased = inverse - bias.detach().float()
    return unbiased if scale is None else unbiased / scale.flatten()[-bias.shape[0] :]
