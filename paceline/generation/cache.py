"""A key-value cache with room to grow: tokens are written in place instead of copying all of it at every step."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """``DynamicLayer`` over buffers that double; ``keys`` and ``values`` are views of what is filled."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append [B, K, T, D]; the views of everything so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = 0 if self.keys.dim() < 4 else self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._grow(key_states, value_states, start, max(end, 2 * start, self._room))
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def _grow(self, key_states: Tensor, value_states: Tensor, start: int, room: int) -> None:
        grown = tuple(x.new_empty(*x.shape[:2], room, x.shape[-1]) for x in (key_states, value_states))
        if start:
            grown[0][:, :, :start], grown[1][:, :, :start] = self.keys, self.values
        self._buffers = (grown[0], grown[1])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Rows ``indices`` in this order; a row may come several times."""
        if self._buffers is None:
            return
        filled = self.keys.shape[-2]
        self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
        self.keys, self.values = (buffer[:, :, :filled] for buffer in self._buffers)


def roomy_cache(config: Any, room: int) -> DynamicCache:
    """A cache for a model of ``config``; layers that keep everything get ``room`` tokens at once, others (sliding windows, states) Transformers' own."""
    cache = DynamicCache(config=config)
    if cache.layer_class_to_replicate is None:
        cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select_rows(cache: DynamicCache, rows: Tensor) -> None:
    """Keep ``rows`` int64 of every layer, in this order; a row may come several times."""
    for layer in cache.layers:
        layer.batch_select_indices(rows)
