"""The smallest image that a family's tower takes, without a processor: zeros in the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.core.json_types import Json, as_object
from paceline.plan.model.family import composites

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def dummy_image(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the inputs of one image for the whole model of ``config``."""
    make, values = _MAKERS[composites()[str(config.model_type)].pixels], config.to_dict()
    return {
        name: value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for name, value in make(as_object(values["vision_config"]), values).items()
    }


def _grid(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """One merged patch: rows of pixels and the grid (time, height, width) of patches."""
    side = _size(vision, "spatial_merge_size")
    width = _size(vision, "in_channels", "in_chans") * _size(vision, "temporal_patch_size")
    return {
        "pixel_values": torch.zeros(side * side, width * _size(vision, "patch_size") ** 2),
        "image_grid_thw": torch.tensor([[1, side, side]]),
    }


def _square(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """A picture of the tower's fixed size."""
    side = _size(vision, "image_size")
    return {"pixel_values": torch.zeros(1, _size(vision, "num_channels"), side, side)}


def _tiles(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """A picture of the smallest size that is cut into whole tiles, and itself."""
    side, points = _size(vision, "image_size"), whole["image_grid_pinpoints"]
    assert isinstance(points, list)
    sizes = [[int(str(length)) for length in point] for point in points if isinstance(point, list)]
    height, width = min(sizes, key=lambda size: size[0] * size[1])
    tiles = 1 + (height // side) * (width // side)
    pixels = torch.zeros(1, tiles, _size(vision, "num_channels"), side, side)
    return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]])}


def _sizes(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """A picture of one merged patch by two: Transformers 5.23 fails at a picture of one token."""
    side = _size(vision, "patch_size") * _size(whole, "spatial_merge_size")
    return {
        "pixel_values": torch.zeros(1, _size(vision, "num_channels"), side, 2 * side),
        "image_sizes": torch.tensor([[side, 2 * side]]),
    }


def _several(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """One row of one picture, of ones: a picture of zeros would be padding."""
    return {"pixel_values": torch.ones_like(_square(vision, whole)["pixel_values"])[None]}


def _patches(vision: Mapping[str, Json], whole: Mapping[str, Json]) -> dict[str, Tensor]:
    """As many patches as are pooled to one token, with their places."""
    side, patch = _size(vision, "pooling_kernel_size"), _size(vision, "patch_size")
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1)
    return {"pixel_values": torch.zeros(1, side * side, 3 * patch**2), "image_position_ids": places[None]}


def _size(config: Mapping[str, Json], *names: str) -> int:
    value = next(config[name] for name in names if name in config)
    return int(str(value[0] if isinstance(value, list) else value))


#: forms whose sizes follow from the config and the image's size: such a tower runs without values
WHOLE_PICTURES = frozenset({"square", "tiles", "sizes"})
_MAKERS = {
    "grid": _grid,
    "square": _square,
    "tiles": _tiles,
    "sizes": _sizes,
    "several": _several,
    "patches": _patches,
}
