"""The vision tower and projector of a whole model: features of a micro-batch's images, through
Transformers' own code.

A micro-batch without images must still give every trained parameter of tower and projector a gradient, and
call the same collectives as one with images. Its loss does not change.

The smallest image that a family's tower takes, without a processor: zeros in the shapes of its inputs.

Parameters of a tower that no image reaches: a pooling head that nothing reads, layers behind the one whose
features are taken. They get no gradient, so they cannot be trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypedDict, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.core.json_types import Json, as_object
from paceline.models.vision.whole_model import sees_images, vision_parameters
from paceline.plan.model.family import both_ways, composites
from paceline.protocols.images import ImageFeatures, Images

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel


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


T = TypeVar("T")


class _SizesOnHost(TorchFunctionMode):
    """Sizes of images that a class brings to its features' device stay on the host, with their values."""

    def __torch_function__(
        self,
        func: Callable[..., T],
        types: Collection[type],
        args: Sequence[Tensor] = (),
        kwargs: Mapping[str, Tensor] | None = None,
    ) -> T:
        """Call ``func``; without a device what it makes of given values stays where they are."""
        given = dict(kwargs or {})
        if func is torch.as_tensor:
            given.pop("device", None)
        return func(*args, **given)


def unreached(skeleton: HFModel) -> frozenset[str]:
    """Return the names of the parameters that get no gradient from the features of an image.

    ``skeleton``: the whole model on meta. Towers whose shapes depend on values cannot run there; those of
    the supported families use all their parameters (``tests/unit/models/test_vision_forward.py``).
    """
    config = skeleton.config
    if composites()[str(config.model_type)].pixels not in WHOLE_PICTURES:
        return frozenset()
    image = dummy_image(config, torch.device("cpu"), torch.float32)
    inputs = {n: x.to("meta") if x.is_floating_point() else x for n, x in image.items()}
    with torch.enable_grad(), _SizesOnHost():
        output = skeleton.base_model.get_image_features(**inputs, return_dict=True)
        total = torch.stack([x.sum() for x in features_of(output)]).sum()
        parameters = dict(vision_parameters(skeleton))
        grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return frozenset(name for name, grad in zip(parameters, grads, strict=True) if grad is None)


def freeze_unreached(hf: HFModel, names: frozenset[str]) -> str:
    """Freeze those parameters of ``hf``, and adapters on them; return a note, empty if none was trained."""
    frozen, others = list[str](), set[str]()
    for name, parameter in vision_parameters(hf):
        plain = _plain(name)
        if plain not in names:
            others |= _prefixes(plain)
        elif parameter.requires_grad:
            parameter.requires_grad_(False)
            frozen.append(plain)
    if not frozen:
        return ""
    whole = {min((p for p in _prefixes(name) - others), key=len) for name in frozen}
    return f"no image reaches {', '.join(sorted(whole))}: {len(frozen)} tensors frozen"


def skip_pooling(hf: HFModel, names: frozenset[str]) -> None:
    """Have towers compute no pooling head that nothing reads, trained or not. ZeRO-3 gathers what is called,
    and does not see that torch's attention in it reads the weights of a submodule.
    """
    for name, module in hf.named_modules():
        if getattr(module, "use_head", False):
            inside = [f"{name}.head.{p}" for p, _ in module.head.named_parameters()]
            module.use_head = not names.issuperset(map(_plain, inside))


def _plain(name: str) -> str:
    """Return the name of a parameter before adapters; for an adapter's, that of the weight it is for."""
    base, adapter, _ = name.partition(".lora_")
    return f"{base}.weight" if adapter else name.replace(".base_layer.", ".")


def _prefixes(name: str) -> set[str]:
    """Return the name of a parameter and of every module that it is in."""
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}
