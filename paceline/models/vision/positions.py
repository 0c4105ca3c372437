"""Rotary positions on several axes (time, height, width) of a document with images, by Transformers' own
``get_rope_index``, computed on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.core.json_types import Json

Ints = npt.NDArray[np.int64]


class VisionPositions:
    """Positions of one family's documents: ``image_token`` is the id that stands for an image's features."""

    def __init__(self, image_token: int, index: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.image_token, self._index = image_token, index

    @staticmethod
    def of(hf_config: Mapping[str, Json]) -> VisionPositions | None:
        """Return the positions of the whole model with this ``config.json``; None for a family whose
        documents have one position a token.
        """
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_MAPPING

        values = dict(hf_config)
        config = AutoConfig.for_model(str(values.pop("model_type")), **values)
        kind = MODEL_MAPPING[type(config)]
        index = getattr(kind, "get_rope_index", None)
        if index is None:
            return None
        shim = SimpleNamespace(config=config)  # the method reads its model's config alone
        if (of_image := getattr(kind, "get_vision_position_ids", None)) is not None:
            shim.get_vision_position_ids = partial(of_image, shim)
        return VisionPositions(config.to_dict()["image_token_id"], partial(index, shim))

    def __call__(self, input_ids: Ints, grids: Ints) -> Ints:
        """input_ids int64 [n] of one document, with its images' tokens; grids int64 [images, 3] -> [A, n]."""
        ids = torch.from_numpy(np.ascontiguousarray(input_ids))[None]
        positions, _ = self._index(
            input_ids=ids,
            mm_token_type_ids=(ids == self.image_token).int(),
            image_grid_thw=torch.from_numpy(np.ascontiguousarray(grids)),
        )
        result: Ints = positions[:, 0].numpy()
        return result
