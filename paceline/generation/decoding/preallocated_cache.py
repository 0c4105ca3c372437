"""A preallocated key-value cache: tokens are written in place instead of copying the cache at every step.

Layers that pass a state from token to token keep it, and the window of their convolution, in Transformers'
own cache layers; they are never given padding: prompts of one length are read together, then joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    LinearAttentionCacheLayerMixin,
)


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """``DynamicLayer`` over buffers that double in size.

    ``keys`` and ``values`` are views of the filled part.
    """

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._filled = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append [B, K, T, D] (K: key-value heads); return views of all keys and values so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._filled = self._filled, self._filled + key_states.shape[-2]
        keys, values = self._with_room(key_states, value_states, start)
        keys[:, :, start : self._filled] = key_states
        values[:, :, start : self._filled] = value_states
        return self._show()

    def _with_room(self, key_states: Tensor, value_states: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Return the buffers, enlarged if they are full."""
        if self._buffers is not None and self._filled <= self._buffers[0].shape[-2]:
            return self._buffers
        room = max(self._filled, 2 * start, self._room)
        grown = [x.new_empty(*x.shape[:2], room, x.shape[-1]) for x in (key_states, value_states)]
        if self._buffers is not None:
            for new, old in zip(grown, self._buffers, strict=True):
                new[:, :, :start] = old[:, :, :start]
        self._buffers = (grown[0], grown[1])
        return self._buffers

    def _show(self) -> tuple[Tensor, Tensor]:
        assert self._buffers is not None
        keys, values = (buffer[:, :, : self._filled] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select batch rows in the order of ``indices``; a row may repeat."""
        if self._buffers is not None:
            self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self._show()


def preallocated_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """Return a cache for a model of ``config``, with full-attention layers preallocated for ``room`` tokens.

    Other layers (sliding windows, states) are Transformers' own.
    """
    cache = DynamicCache(config=config)
    if cache.layer_class_to_replicate is None:
        cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Select ``rows`` (int64) of every layer's batch, in this order; a row may repeat."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for states in states_of_tokens(layer):
                states.update({i: state[rows] for i, state in states.items() if state is not None})
        elif type(layer).reorder_cache is not CacheLayerMixin.reorder_cache:  # more than keys and values
            layer.reorder_cache(rows)  # type: ignore[arg-type]  # a tensor of int64
            continue
        if isinstance(layer, DynamicLayer):
            layer.batch_select_indices(rows)


def joined(caches: Sequence[DynamicCache], room: int) -> DynamicCache:
    """Return one cache of prompts that were read in batches of one length each, the longest last.

    Keys and values get padding on the left, as attention masks it; states have nothing of it. Layers of full
    attention have room for ``room`` tokens. The caches are used up.
    """
    whole = caches[-1]
    for number, layer in enumerate(whole.layers):
        parts = [cache.layers[number] for cache in caches]
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for of_parts in zip(*(states_of_tokens(part) for part in parts), strict=True):
                for i, state in of_parts[-1].items():
                    if state is not None:
                        of_parts[-1][i] = torch.cat([states[i] for states in of_parts])
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            keys, values = (_widened([getattr(part, name) for part in parts]) for name in ("keys", "values"))
            if isinstance(layer, RoomyLayer):
                whole.layers[number] = roomy = RoomyLayer(room)
                roomy.update(keys, values)
            else:
                layer.keys, layer.values = keys, values
    return whole


def _widened(parts: Sequence[Tensor]) -> Tensor:
    """Return keys or values [B, K, T, D] of several batches as one, as wide as the last."""
    width = parts[-1].shape[-2]
    return torch.cat([F.pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts])


def states_of_tokens(layer: Any) -> tuple[dict[int, Tensor | None], dict[int, Tensor | None]]:
    """Return the convolution windows [B, C, K] and states [B, …] of a cache's layer, by number."""
    return layer.conv_states, layer.recurrent_states
