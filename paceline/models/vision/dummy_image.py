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
    make = _MAKERS[composites()[str(config.model_type)].pixels]
    return {
        name: value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)
        for name, value in make(as_object(config.to_dict()["vision_config"])).items()
    }


def _grid(vision: Mapping[str, Json]) -> dict[str, Tensor]:
    """One merged patch: rows of pixels and the grid (time, height, width) of patches."""
    side = _size(vision, "spatial_merge_size")
    width = _size(vision, "in_channels", "in_chans") * _size(vision, "temporal_patch_size")
    return {
        "pixel_values": torch.zeros(side * side, width * _size(vision, "patch_size") ** 2),
        "image_grid_thw": torch.tensor([[1, side, side]]),
    }


def _square(vision: Mapping[str, Json]) -> dict[str, Tensor]:
    """A picture of the tower's fixed size."""
    side = _size(vision, "image_size")
    return {"pixel_values": torch.zeros(1, _size(vision, "num_channels"), side, side)}


def _size(vision: Mapping[str, Json], *names: str) -> int:
    value = next(vision[name] for name in names if name in vision)
    return int(str(value[0] if isinstance(value, list) else value))


_MAKERS = {"grid": _grid, "square": _square}
