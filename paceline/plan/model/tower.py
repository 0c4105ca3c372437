"""The vision tower and projector of a model that reads images: parameters by name and shape, from its config.

No torch. ``data/towers.json`` has the towers' lines, as ``parameters.json`` has those of language models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan.plan_json import shipped_table

Size = tuple[int, ...]
_CASTS = 7  # bytes per patch and hidden element of a layer


@dataclass(frozen=True)
class Tower:
    """A vision tower by its layout and sizes. ``layers``: of its encoder; ``merge``: patches of one token."""

    layout: str
    family: str
    sizes: Mapping[str, int]

    @property
    def layers(self) -> int:
        """Layers of the encoder."""
        return self.sizes["layers"]

    @property
    def pixels(self) -> int:
        """Width and height of a picture for examples: the tower's own, else 448."""
        grid, patch, merge = self._of("grid", "p", "n")
        side, block = math.isqrt(grid) * patch, patch * merge
        return side if 0 < side <= 1024 else 448 // block * block

    @property
    def patches(self) -> int:
        """Patches of the picture of ``pixels``."""
        return (self.pixels // self.sizes["p"]) ** 2

    def flops(self) -> int:
        """Return the forward FLOPs of tower and projector for the picture of ``pixels``.

        A multiplication counts as two; attention is over all patches.
        """
        patches, (hidden, merge) = self.patches, self._of("h", "m")
        total = 4 * self.layers * hidden * patches * patches
        for name, size in self.tensors():
            if len(size) >= 2 and "position" not in name and "pos_embed" not in name:
                rows = patches if ".layers." in name or ".layer." in name or ".blocks." in name else 0
                first = ".patch" in name and not rows
                total += 2 * math.prod(size) * (rows or (patches if first else -(-patches // merge)))
        return total

    @property
    def pixel_values(self) -> int:
        """Values of the picture of ``pixels``, as the image processor hands it over."""
        channels, patch, frames = self._of("c", "p", "t")
        return self.patches * channels * patch * patch * max(1, frames)

    def saved(self, element: int, *, tower: bool, projector: bool, recompute: bool) -> float:
        """Return the bytes that a backward keeps for the picture of ``pixels``, with products in ``element``
        bytes. ``tower``, ``projector``: trained; ``recompute``: layers keep their inputs, one all it needs.
        """
        hidden, inner, merge = self._of("h", "i", "m")
        width, units = _towers().layouts[self.layout].saves, element
        # under autocast norms work in fp32 beside the 16-bit inputs of products
        layer = units * (width[0] * hidden + width[1] * inner) + (_CASTS * hidden if element < 4 else 0)
        kept = 0.0
        if tower:
            layers = layer + units * hidden * self.layers if recompute else layer * self.layers
            kept += self.patches * (layers + 2 * units * hidden)
        if tower or projector:
            tensors = [
                (size, name) for line in _towers().projectors[self.family] for name, size in self._line(line)
            ]
            shapes = [size for size, _ in tensors if len(size) == 2]
            # inputs of products, of activations between them, and of a norm
            values = sum(size[1] for size in shapes) + sum(size[0] for size in shapes[:-1])
            values += merge * hidden * any(n.endswith("weight") and len(s) == 1 for s, n in tensors)
            kept += self.patches / merge * units * values
        return kept

    def _of(self, *names: str) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)

    def tensors(self) -> Iterator[tuple[str, Size]]:
        """Yield names within the trunk and shapes, first of the tower, then of the projector."""
        table = _towers()
        for line in (*table.layouts[self.layout].lines, *table.projectors[self.family]):
            yield from self._line(line)

    def _line(self, line: str) -> Iterator[tuple[str, Size]]:
        text, _, condition = line.partition(" ?")
        name, *dims = text.split()
        size = tuple(self._size(dim) for dim in dims)
        holds = not condition or self.sizes[condition] > 0
        named: list[tuple[str, Size]] = [(name, size)] if holds else []
        if name.endswith(".*"):
            named = [(f"{name[:-1]}weight", size), *([(f"{name[:-1]}bias", size[:1])] if holds else [])]
        for mark, count in (("#", self.layers), ("@", self.sizes["deepstack"])):
            if mark in name:
                named = [(n.replace(mark, str(i), 1), s) for i in range(count) for n, s in named]
        yield from named

    def _size(self, dim: str) -> int:
        terms = (term.split("*") for term in dim.split("+"))
        return sum(math.prod(int(f) if f.isdigit() else self.sizes[f] for f in term) for term in terms)


@dataclass(frozen=True)
class _TowerLines:
    """``sizes``: defaults of the config's class, where files leave them out; ``lines``: of tensors.

    ``saves``: elements that a layer keeps for its backward for each patch, in units of (hidden size, inner
    size), as its class runs in fp32.
    """

    sizes: Mapping[str, int]
    lines: tuple[str, ...]
    saves: tuple[int, int]


@dataclass(frozen=True)
class _Towers:
    """``towers``: model type → layout, unless its vision_config names one; ``projectors``: lines by type.

    In a line ``#`` is the number of a layer and ``@`` of a further merger.
    """

    towers: Mapping[str, str]
    layouts: Mapping[str, _TowerLines] = field(default_factory=dict)
    projectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_towers = cache(partial(shipped_table, "towers", _Towers))


def tower_of(config: Mapping[str, Json], text_size: int) -> Tower | None:
    """Return the tower of a ``config.json`` beside a text of ``text_size``; None for one without a layout."""
    family, table = str(config.get("model_type")), _towers()
    vision = as_object(config.get("vision_config"))
    layout = str(vision.get("model_type") or "")
    layout = layout if layout in table.layouts else table.towers.get(family, "")
    if layout not in table.layouts or family not in table.projectors:
        return None
    return Tower(layout, family, _sizes(config, {**table.layouts[layout].sizes, **vision}, text_size))


def _sizes(config: Mapping[str, Json], vision: JsonObject, text_size: int) -> dict[str, int]:
    """Return the sizes that lines name."""
    hidden = _first(vision, "embed_dim", "hidden_size")
    patch, channels = _first(vision, "patch_size"), _first(vision, "in_channels", "num_channels", "in_chans")
    side, features = _first(vision, "image_size") // max(1, patch), config.get("vision_feature_layer")
    merge = _merge(config, vision)
    deep = vision.get("deepstack_visual_indexes")
    qk, relative = bool(vision.get("use_qk_norm")), vision.get("use_absolute_position_embeddings")
    return {
        "h": hidden,
        "i": _first(vision, "intermediate_size") or hidden * _first(vision, "mlp_ratio"),
        "layers": _first(vision, "depth", "num_hidden_layers"),
        "c": channels,
        "p": patch,
        "t": _first(vision, "temporal_patch_size"),
        "n": math.isqrt(merge),
        "m": merge,
        "grid": side * side,
        "places": _first(vision, "num_position_embeddings"),
        "out": _first(vision, "out_hidden_size", "hidden_size"),
        "text": text_size,
        "deepstack": len(deep)
        if isinstance(deep, list)
        else _first(vision, "deepstack")
        if deep is None
        else 0,
        "features": len(features) if isinstance(features, list) else 1,
        "bias": int(config.get("multimodal_projector_bias") is not False),
        "own_bias": int(config.get("multimodal_projector_bias") is True),
        "head": _first(vision, "vision_use_head"),
        "attention_bias": int(bool(vision.get("attention_bias"))),
        "qk_norm": int(qk),
        "layer_norm": int(vision.get("norm_type", "layer_norm") == "layer_norm"),
        "mask": int(bool(vision.get("use_mask_token"))),
        "absolute": int(bool(relative)),
        "pin": _first(vision, "projector_input_dim"),
        "pout": _first(vision, "projector_output_dim"),
        "vod": _first(vision, "vision_output_dim"),
    }


def _merge(config: Mapping[str, Json], vision: JsonObject) -> int:
    """Return how many patches become one token."""
    side = vision.get("spatial_merge_size", config.get("spatial_merge_size", config.get("scale_factor")))
    ratio = config.get("downsample_ratio", 0.5)
    if side is None:
        side = round(1 / ratio) if isinstance(ratio, (int, float)) and ratio > 0 else 2
    return side * side if isinstance(side, int) else 4


def _first(values: JsonObject, *names: str) -> int:
    """Return the first of these values as an integer (of a pair, its first number); 0 if all are missing."""
    for name in names:
        value = values.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, (bool, int, float)):
            return int(value)
    return 0
