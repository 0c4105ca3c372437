"""Sizes of pictures that keep their shape: patches in a grid, within bounds of pixels or of an edge."""

from __future__ import annotations

import math


def scaled_size(width: int, height: int, least: int | None, most: int | None) -> tuple[int, int]:
    """Return (width, height) within bounds of pixels (``data.image_min_pixels``, ``image_max_pixels``)."""
    if most and width * height > most:
        factor = math.sqrt(most / (width * height))
        width, height = max(1, int(width * factor)), max(1, int(height * factor))
    if least and width * height < least:
        factor = math.sqrt(least / (width * height))
        width, height = math.ceil(width * factor), math.ceil(height * factor)
    return width, height


def grid_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Return (rows, columns) of squares of ``factor`` pixels, whose pixels lie between the bounds.

    Raises ValueError for a picture more than 200 times as long as wide.
    """
    _check_shape(height, width)
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > most:
        scale = math.sqrt((height * width) / most)
        tall = max(factor, math.floor(height / scale / factor) * factor)
        wide = max(factor, math.floor(width / scale / factor) * factor)
    elif tall * wide < least:
        scale = math.sqrt(least / (height * width))
        tall = math.ceil(height * scale / factor) * factor
        wide = math.ceil(width * scale / factor) * factor
    return tall // factor, wide // factor


def with_frames_size(
    height: int, width: int, factor: int, frames: int, bounds: tuple[int, int]
) -> tuple[int, int]:
    """The same for a picture that is repeated as ``frames``: the bounds are on the pixels of all of them."""
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_shape(height, width)
    least, most = bounds
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if frames * tall * wide > most:
        scale = math.sqrt((frames * height * width) / most)
        tall = max(factor, math.floor(height / scale / factor) * factor)
        wide = max(factor, math.floor(width / scale / factor) * factor)
    elif frames * tall * wide < least:
        scale = math.sqrt(least / (frames * height * width))
        tall = math.ceil(height * scale / factor) * factor
        wide = math.ceil(width * scale / factor) * factor
    return tall // factor, wide // factor


def _check_shape(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > 200:
        raise ValueError(f"{width} x {height} pixels: one side is more than 200 times the other")


def gemma_size(height: int, width: int, side: int, most: int) -> int:
    """Return the squares of ``side`` pixels, at most ``most``, of a picture in its own shape.

    Raises ValueError.
    """
    factor = math.sqrt(most * side**2 / (height * width))
    rows, columns = math.floor(factor * height / side), math.floor(factor * width / side)
    if not rows and not columns:
        raise ValueError(f"{width} x {height} pixels give no patch")
    if not rows:
        rows, columns = 1, min(width // height, most)
    elif not columns:
        rows, columns = min(height // width, most), 1
    return rows * columns


def rows_size(height: int, width: int, most: tuple[int, int], patch: int) -> tuple[int, int]:
    """Return (rows, columns) of patches; ``most``: bounds of (height, width)."""
    if (ratio := max(height / most[0], width / most[1])) > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    return (height - 1) // patch + 1, (width - 1) // patch + 1
