"""A model's image processor: the pixels by Transformers' own class with Pillow, the tokens from sizes alone.

``AutoProcessor`` is not asked: for most families it needs torchvision, for videos that it could read.

Pictures as a model gets them: what its tower reads, put together to pictures again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.plan.images.settings import ImageSettings
from paceline.plan.model.family import ImageFamily

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase
    from transformers.image_processing_utils import BaseImageProcessor


Inputs = dict[str, NDArray]


class ImageMarks:
    """The tokens that stand for pictures, and their text. ``mark``: what a chat template writes for one;
    ``written``: the text for templates that take none; ``token_id``: the token whose embedding is replaced.

    Raises DataError if the tokenizer lacks a token.
    """

    def __init__(self, family: ImageFamily, tokenizer: PreTrainedTokenizerBase) -> None:
        self.names: dict[str, str] = {
            part: str((attribute and getattr(tokenizer, attribute, None)) or usual)
            for part, (attribute, usual) in family.tokens.items()
        }
        self.mark = self.names[family.mark]
        self.written = family.written.replace("{mark}", self.mark)
        self.token_id = self._id(tokenizer, "image")
        for part in self.names:
            self._id(tokenizer, part)

    def _id(self, tokenizer: PreTrainedTokenizerBase, part: str) -> int:
        ids = tokenizer.encode(self.names[part], add_special_tokens=False)
        if len(ids) != 1:
            raise DataError(codes.DATA_IMAGE_TOKEN("model.tokenizer", self.names[part]))
        return int(ids[0])


@dataclass(frozen=True)
class ImageProcessor:
    """Pictures as a model sees them. Small enough for worker processes; the class is made when first used."""

    settings: ImageSettings

    def counted(self, inputs: list[Inputs]) -> list[Inputs]:
        """Return the inputs of one row's pictures with their number, where the tower reads it."""
        if "batch_num_images" in self.settings.family.inputs:
            for number, arrays in enumerate(inputs):
                count = [] if number else [len(inputs)]
                arrays["batch_num_images"] = np.array(count, np.int64)
        return inputs

    def of_image(self, image: Image, *, alone: bool = True) -> Inputs:
        """Return what the tower reads of one picture; the first axis counts pictures, tiles or patches."""
        return self._processed(self._processor, image, alone)

    def _processed(self, processor: BaseImageProcessor, image: Image, alone: bool) -> Inputs:
        from transformers.image_processing_utils import BaseImageProcessor

        family = self.settings.family
        image = self.resized(image)
        made: Mapping[str, NDArray]
        if not family.pil:  # torchvision's may give bfloat16, which NumPy lacks
            tensors = processor([image], return_tensors="pt")
            made = {name: tensors[name].cpu().double().numpy() for name in family.inputs}
        elif alone or not family.alone:
            made = processor([image], return_tensors="np")
        else:  # one of several of its row: the count that says so is a second argument of the class's parent
            made = BaseImageProcessor.preprocess(processor, [image], [2], return_tensors="np")
        names = (name for name in family.inputs if name in made and name != "batch_num_images")
        return {name: _plain(np.asarray(made[name])) for name in names}

    def resized(self, image: Image) -> Image:
        """Return a picture within the bounds of ``data.image_min_pixels`` and ``image_max_pixels``."""
        from paceline.plan.images.layouts import scaled_size

        size = scaled_size(*image.size, self.settings.min_pixels, self.settings.max_pixels)
        return image if size == image.size else image.resize(size)

    def joined(self, parts: Iterable[Inputs]) -> Inputs:
        """Return the inputs of several pictures as one; shorter axes are filled with zeros."""
        listed, axis = list(parts), self.settings.family.joined
        return {
            name: _joined([part[name] for part in listed], axis) for name in (listed[0] if listed else {})
        }

    def pixels(self, tile: NDArray) -> NDArray:
        """Return a tile of the tower's input, float [3, height, width], as values from 0 to 255."""
        made = self._processor.to_dict()
        if made.get("do_normalize"):
            mean, std = (np.asarray(made[name]).reshape(-1, 1, 1) for name in ("image_mean", "image_std"))
            tile = tile * std + mean
        return tile / made["rescale_factor"] if made.get("do_rescale") else tile

    @cached_property
    def _processor(self) -> BaseImageProcessor:
        return self._made(self.settings.images)

    def _made(self, settings: Mapping[str, Json]) -> BaseImageProcessor:
        module, name = self.settings.family.processor.split(":")
        try:
            kind = getattr(import_module(f"transformers.models.{module}"), name)
        except ImportError as error:
            raise DataError(codes.DATA_IMAGE_PACKAGE(name, str(error)[:200])) from error
        whole = self.settings.processor
        if "spatial_merge_size" in whole:  # patches that the model merges are cut as one
            merged = self.settings.whole("patch_size") * self.settings.whole("spatial_merge_size")
            settings = {**settings, "patch_size": merged}
        made: BaseImageProcessor = kind.from_dict(dict(settings))
        return made


def _plain(values: NDArray) -> NDArray:
    """Return pixels in single precision, counts as int64."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64, copy=False)


def _joined(arrays: Sequence[NDArray], axis: int) -> NDArray:
    axis = min(axis, arrays[0].ndim - 1)
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    padded = []
    for array in arrays:
        short = [
            0 if n == axis else most - size
            for n, (most, size) in enumerate(zip(shape, array.shape, strict=True))
        ]
        padded.append(np.pad(array, [(0, missing) for missing in short]) if any(short) else array)
    return np.concatenate(padded, axis=axis)


def shown_pictures(processor: ImageProcessor, inputs: Inputs) -> Iterator[Image]:
    """Yield the tiles of one picture in order; patches are put together to the picture they come from."""
    from PIL import Image

    values = inputs["pixel_values"]
    if "image_grid_thw" in inputs:
        settings = processor.settings
        tiles = [_of_grid(values, inputs["image_grid_thw"][0], settings.number("merge_size"))]
    elif "image_position_ids" in inputs:
        tiles = [_of_places(values[0], inputs["image_position_ids"][0])]
    else:
        tiles = [*values.reshape(-1, *values.shape[-3:])]
    for tile in tiles:
        pixels = np.clip(np.rint(processor.pixels(tile)), 0, 255).astype(np.uint8)
        yield Image.fromarray(np.moveaxis(pixels, 0, -1), "RGB")


def _of_grid(patches: NDArray, grid: NDArray[np.int64], merge: int) -> NDArray:
    """patches [rows * columns, 3 * frames * side * side], in squares of ``merge`` -> [3, height, width]."""
    _, rows, columns = (int(n) for n in grid)
    frames = 2
    side = int(round((patches.shape[1] / 3 / frames) ** 0.5))
    if side * side * 3 * frames != patches.shape[1]:
        frames, side = 1, int(round((patches.shape[1] / 3) ** 0.5))
    shape = (rows // merge, columns // merge, merge, merge, 3, frames, side, side)
    first = patches.reshape(shape)[:, :, :, :, :, 0]  # [R, C, r, c, 3, side, side]
    return first.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * side, columns * side)


def _of_places(patches: NDArray, places: NDArray[np.int64]) -> NDArray:
    """patches [n, side * side * 3], places [n, 2] of (column, row), -1 for padding -> [3, height, width]."""
    real = places[:, 0] >= 0
    side = int(round((patches.shape[1] / 3) ** 0.5))
    columns, rows = (int(n) + 1 for n in places[real].max(axis=0))
    picture = np.zeros((3, rows * side, columns * side), patches.dtype)
    for patch, (column, row) in zip(patches[real], places[real], strict=True):
        tile = patch.reshape(side, side, 3).transpose(2, 0, 1)
        picture[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = tile
    return picture
