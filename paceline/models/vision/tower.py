"""The vision tower and projector of a whole model: features of a micro-batch's images, through
Transformers' own code.

A micro-batch without images must still give every trained parameter of tower and projector a gradient, and
call the same collectives as one with images. Its loss does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.models.vision.dummy_image import dummy_image
from paceline.models.vision.whole_model import sees_images, vision_parameters
from paceline.plan.model.family import both_ways
from paceline.protocols.images import ImageFeatures, Images

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


class VisionTower:
    """Features of images from ``hf``'s tower and projector; ``both_ways``: see ``Composite``.

    ``gathers``: an engine gathers or shards the parameters of single modules, so the tower computes a small
    image in a micro-batch without any; else its parameters are added times zero.
    """

    def __init__(self, hf: HFModel, gathers: bool) -> None:
        self._hf, self.gathers = hf, gathers
        self.both_ways = both_ways(hf.config.to_dict())

    @staticmethod
    def of(hf: HFModel, gathers: bool) -> VisionTower | None:
        """Return the tower of a whole model; None for a language model."""
        return VisionTower(hf, gathers) if sees_images(hf) else None

    def features(self, images: Images) -> dict[str, ImageFeatures]:
        """Return what the trunk takes as ``mm_encoder_outputs``."""
        return {"image": self._compute(images.inputs)}

    def nothing(self, device: torch.device) -> Tensor | None:
        """Return a zero with which a micro-batch without images touches the parameters; None if none is
        trained or gathered.
        """
        if self.gathers:
            dtype = next(p.dtype for _, p in vision_parameters(self._hf))
            output = self._compute(dummy_image(self._hf.config, device, dtype))
            return torch.stack([x.sum() * 0 for x in features_of(output)]).sum()
        trained = [p for _, p in vision_parameters(self._hf) if p.requires_grad]
        if not trained or not torch.is_grad_enabled():
            return None
        return torch.stack([p.sum() * 0 for p in trained]).sum()

    def _compute(self, inputs: Mapping[str, Tensor]) -> ImageFeatures:
        return self._hf.base_model.get_image_features(**inputs, return_dict=True)


def features_of(output: ImageFeatures) -> Iterator[Tensor]:
    """Yield the features of a tower's output that the language model takes."""
    yield from _flat(output.pooler_output)
    for added in getattr(output, "deepstack_features", None) or ():
        yield from _flat(added)


def _flat(value: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    yield from (value,) if isinstance(value, Tensor) else value
