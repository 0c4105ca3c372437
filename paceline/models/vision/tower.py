"""The vision tower and projector of a whole model: features of a micro-batch's images, through
Transformers' own code.

A micro-batch without images must still give every trained parameter of tower and projector a gradient, and
call the same collectives as one with images. Its loss does not change.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from paceline.models.vision.dummy_image import dummy_image
from paceline.models.vision.whole_model import sees_images, vision_parameters
from paceline.plan.model.family import both_ways, composites
from paceline.protocols.images import ImageFeatures, Images

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


IMAGE_TOKEN = "image_token_id"  # of every family's config, also where its file calls it an index


class TrunkInputs(TypedDict, total=False):
    """Arguments of a whole model's trunk: tokens and images' features, or their embeddings."""

    input_ids: Tensor
    mm_encoder_outputs: dict[str, ImageFeatures]
    inputs_embeds: Tensor


class VisionTower:
    """Features of images from ``hf``'s tower and projector; ``both_ways``: see ``Composite``.

    ``gathers``: an engine gathers or shards the parameters of single modules. Then the tower computes a small
    image in a micro-batch without any; else its parameters are added times zero. ``dtype``: of its products,
    under autocast, since its classes have no low-precision forms of ours.
    """

    def __init__(self, hf: HFModel, gathers: bool, dtype: torch.dtype = torch.float32) -> None:
        self._hf, self.gathers, self._dtype = hf, gathers, dtype
        self._low = dtype in (torch.bfloat16, torch.float16)
        self.both_ways = both_ways(hf.config.to_dict())
        self._merges = composites()[str(hf.config.model_type)].merged_here

    @staticmethod
    def of(hf: HFModel, gathers: bool, dtype: torch.dtype) -> VisionTower | None:
        """Return the tower of a whole model; None for a language model."""
        return VisionTower(hf, gathers, dtype) if sees_images(hf) else None

    def inputs(self, ids: Tensor, images: Images) -> TrunkInputs:
        """Return the trunk's arguments for tokens [1, T] or [D, L] with the features of ``images``."""
        output = self._compute(images.inputs)
        if not self._merges:
            return {"input_ids": ids, "mm_encoder_outputs": {"image": output}}
        embedded: Tensor = self._hf.get_input_embeddings()(ids)
        features = torch.cat([x.flatten(0, -2) for x in features_of(output)]).to(embedded.dtype)
        places = (ids == int(getattr(self._hf.config, IMAGE_TOKEN))).unsqueeze(-1)
        return {"inputs_embeds": embedded.masked_scatter(places, features)}

    def in_rows(self, ids: Tensor, real: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the tokens [D, L] of padded rows, none of an image where not ``real``.

        A trunk whose images' tokens see each other also gets which those are.
        """
        token = int(getattr(self._hf.config, IMAGE_TOKEN))
        ids = torch.where(real, ids, int(token == 0))
        types = (ids == token).long()
        taken = inspect.signature(self._hf.base_model.forward).parameters
        names = [name for name in ("token_type_ids", "mm_token_type_ids") if self.both_ways and name in taken]
        return ids, dict.fromkeys(names, types)

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
        device = next(iter(inputs.values())).device.type
        with torch.autocast(device, self._dtype) if self._low else nullcontext():
            return self._hf.base_model.get_image_features(**inputs, return_dict=True)


def features_of(output: ImageFeatures) -> Iterator[Tensor]:
    """Yield the features of a tower's output that the language model takes."""
    yield from _flat(output.pooler_output)
    for added in getattr(output, "deepstack_features", None) or ():
        yield from _flat(added)


def _flat(value: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    yield from (value,) if isinstance(value, Tensor) else value
