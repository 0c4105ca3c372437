"""Key-value caches over buffers: tokens are written in place instead of copying the cache at every step.

Layers that pass a state from token to token keep it, and the window of their convolution, in Transformers'
own cache layers. They never get padding: prompts of one length are read together, then joined.

The static cache has fixed addresses and shapes, so that a decoding step can be captured in a graph. Buffers
are allocated once for the largest batch; a step sees their first rows and slots. A layer with a sliding
window keeps a ring of the last ``window`` tokens. One additive mask for all layers of a kind holds the slots
that a row may attend to; each step changes one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    Cache,
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
        # Doubled: all copies together are linear in the tokens
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
            # A copy, which ``_THIN`` keeps rare.
            self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self._show()


def preallocated_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """Return a cache for a model of ``config``, with full-attention layers preallocated for ``room`` tokens.

    Other layers (sliding windows, states) are Transformers' own.
    """
    cache = DynamicCache(config=config)
    # Set where Transformers does not know the layers from the config and makes them as they come.
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
    """Join the caches of prompts that were read in batches of equal length, the longest last.

    Keys and values get padding on the left, which attention masks; states need none. Layers of full attention
    have room for ``room`` tokens. Consumes the caches.
    """
    # Its keys need no padding, so it is kept, and the others are joined to it.
    longest = caches[-1]
    for number, layer in enumerate(longest.layers):
        parts = [cache.layers[number] for cache in caches]
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for of_parts in zip(*(states_of_tokens(part) for part in parts), strict=True):
                for i, state in of_parts[-1].items():
                    if state is not None:
                        of_parts[-1][i] = torch.cat([states[i] for states in of_parts])
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            keys, values = (_widened([getattr(part, name) for part in parts]) for name in ("keys", "values"))
            if isinstance(layer, RoomyLayer):
                longest.layers[number] = roomy = RoomyLayer(room)
                roomy.update(keys, values)
            else:
                layer.keys, layer.values = keys, values
    return longest


def _widened(parts: Sequence[Tensor]) -> Tensor:
    """Return keys or values [B, K, T, D] of several batches as one, as wide as the last."""
    width = parts[-1].shape[-2]
    # On the left, as prompts are padded.
    return torch.cat([F.pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts])


def states_of_tokens(layer: Any) -> tuple[dict[int, Tensor | None], dict[int, Tensor | None]]:
    """Return the convolution windows [B, C, K] and states [B, …] of a cache's layer, by number."""
    return layer.conv_states, layer.recurrent_states


if TYPE_CHECKING:
    from paceline.generation.decoding.request_batch import PromptBatch

FULL, SLIDING = "full_attention", "sliding_attention"
_MULTIPLE = 64  # of slots: masks and keys start at addresses that attention kernels like
Masks = dict[str, Tensor]  # by kind of layer: additive, [rows, 1, 1, slots]


@dataclass
class _Ring:
    """Slots of one kind of layer: ``room`` of them, used as a ring if ``around``."""

    room: int
    around: bool
    visible: Tensor  # additive mask, [rows, room]
    slot: Tensor  # int64 [1], where the next token is written


class StaticLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The first rows and slots of a layer's buffers [R, K, S, D]; a step writes one token at ``slot``."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self._slot = keys, values, slot
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write [B, K, 1, D] at the slot; return all keys and values, unseen slots included."""
        assert self.keys is not None and self.values is not None
        # The slot is a tensor: a captured graph then writes where it says at replay.
        self.keys.index_copy_(2, self._slot, key_states)
        self.values.index_copy_(2, self._slot, value_states)
        return self.keys, self.values


class StaticBuffers:
    """Keys and values of all layers for ``rows`` answers of ``room`` tokens, prompt included."""

    def __init__(self, config: PreTrainedConfig, read: DynamicCache, rows: int, room: int) -> None:
        """Allocate the buffers; ``read``: a cache of this model after a prefill, for shapes and dtype."""
        self.room = -(-room // _MULTIPLE) * _MULTIPLE
        states = [states_of(layer) for layer in read.layers]
        # A model of states alone is refused before.
        first = next(keys for keys, _ in filter(None, states))
        kinds = kinds_of(config, len(states))
        windows = {
            kind: int(getattr(layer, "sliding_window", 0) or 0)
            for kind, layer in zip(kinds, read.layers, strict=True)
        }
        self._kinds, self._rings = kinds, {}
        for kind, window in windows.items():
            # Where everything fits in the window, a ring would only add a modulo.
            around = 0 < window < self.room
            size = window if around else self.room
            visible = torch.full((rows, size), -torch.inf, dtype=first.dtype, device=first.device)
            slot = torch.zeros(1, dtype=torch.int64, device=first.device)
            self._rings[kind] = _Ring(size, around, visible, slot)
        self._layers: list[tuple[Tensor, Tensor] | None] = [
            like and _empty(like, rows, self._rings[kind].room)
            for kind, like in zip(kinds, states, strict=True)
        ]

    def fill(self, read: DynamicCache, prompts: PromptBatch, of_row: Tensor) -> None:
        """Copy the prompts' keys and values from ``read``: row r is prompt ``of_row[r]``."""
        rows, width = slice(len(of_row)), prompts.width
        for ring in self._rings.values():
            count = min(width, ring.room)
            # Token t lies in slot t mod room; of a ring only the last ``room`` tokens are left.
            slots = torch.arange(width - count, width, device=of_row.device).remainder(ring.room)
            seen = torch.ones_like(prompts.ids) if prompts.seen is None else prompts.seen
            shown = seen[:, width - count :].to(ring.visible.dtype).log()  # 0, or -inf at padding
            ring.visible[rows].fill_(-torch.inf).index_copy_(1, slots, shown[of_row])
            ring.slot.fill_(width % ring.room)
        for kind, buffers, layer in zip(self._kinds, self._layers, read.layers, strict=True):
            for buffer, states in zip(buffers or (), states_of(layer) or (), strict=True):
                count, size = states.shape[2], self._rings[kind].room
                slots = torch.arange(width - count, width, device=of_row.device).remainder(size)
                buffer[rows].index_copy_(2, slots, states[of_row])

    def show(self, rows: int) -> None:
        """Unmask the slot of the next forward's token for all ``rows``."""
        for ring in self._rings.values():
            ring.visible[:rows].index_fill_(1, ring.slot, 0.0)

    def move_on(self) -> None:
        """Advance to the next slot."""
        for ring in self._rings.values():
            ring.slot.add_(1)
            if ring.around:
                ring.slot.remainder_(ring.room)

    def masks(self, rows: int, slots: int) -> Tensor | Masks:
        """The masks of the first rows and slots; one tensor if all layers are of one kind."""
        by_kind = {
            kind: ring.visible[:rows, : ring.room if ring.around else slots][:, None, None, :]
            for kind, ring in self._rings.items()
        }
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))

    def cache(self, rows: int, slots: int) -> Cache:
        """The first rows and slots as a cache that a model's forward writes to."""
        layers: list[Any] = []
        for kind, buffers in zip(self._kinds, self._layers, strict=True):
            ring = self._rings[kind]
            part = ring.room if ring.around else slots
            if buffers is None:
                layers.append(DynamicLayer())  # type: ignore[no-untyped-call]
            else:
                keys, values = (b[:rows, :, :part] for b in buffers)
                layers.append(StaticLayer(keys, values, ring.slot))
        return Cache(layers=layers)

    def keep(self, order: Tensor) -> None:
        """Move rows ``order`` (int64 [n]) to the front."""
        count = slice(len(order))
        for buffers in self._layers:
            for buffer in buffers or ():
                buffer[count] = buffer[order]
        for ring in self._rings.values():
            ring.visible[count] = ring.visible[order]


def states_of(layer: object) -> tuple[Tensor, Tensor] | None:
    """Return the keys and values of a layer of a cache; None if it has none (it uses another layer's)."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    return None if keys is None or values is None else (keys, values)


def _empty(like: tuple[Tensor, Tensor], rows: int, room: int) -> tuple[Tensor, Tensor]:
    """Return zeros: attention multiplies unwritten slots by 0."""
    keys, values = (x.new_zeros(rows, x.shape[1], room, x.shape[3]) for x in like)
    return keys, values


def kinds_of(config: PreTrainedConfig, layers: int) -> list[str]:
    """Return the kind of each layer's attention, as masks are named by it."""
    kinds = getattr(config.get_text_config(), "layer_types", None)
    return [FULL] * layers if kinds is None else list(kinds)[:layers]


def obstacle(config: PreTrainedConfig, layers: Sequence[object]) -> str | None:
    """Return why this model's keys and values cannot lie in fixed buffers, or None."""
    from transformers.cache_utils import DynamicSlidingWindowLayer

    plain = (RoomyLayer, DynamicLayer, DynamicSlidingWindowLayer)  # others hold more than keys and values
    strange = [type(layer).__name__ for layer in layers if type(layer) not in plain]
    if strange:
        return f"its cache has layers of another kind ({strange[0]})"
    other = set(kinds_of(config, len(layers))) - {FULL, SLIDING}
    return f"its layers are of another kind ({sorted(other)[0]})" if other else None
