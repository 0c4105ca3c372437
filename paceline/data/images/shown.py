"""Pictures as a model gets them: what its tower reads, put together to pictures again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.data.images.processor import ImageProcessor, Inputs

if TYPE_CHECKING:
    from PIL.Image import Image


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
