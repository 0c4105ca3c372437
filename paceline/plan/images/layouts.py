"""Which tokens stand for a picture of a size: by the name of the layout, runs of (part, count).

A part is a key of ``ImageFamily.tokens``, or a text of its own. Sizes are of the upright picture, in pixels.
Raises ValueError for a shape that the family's processor refuses.

Sizes of pictures that keep their shape: patches in a grid, within bounds of pixels or of an edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from paceline.core.json_types import as_number
from paceline.plan.images.settings import ImageSettings, resolutions
from paceline.plan.images.tiles import (
    best_canvas,
    best_fit,
    best_resolution,
    pan_and_scan_crops,
    split_grid,
    unpadded,
)


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


Run = tuple[str, int]


class ImageLayout(NamedTuple):
    """``runs``: the parts in order, each with its count; ``tokens``: how many of them stand for features."""

    runs: tuple[Run, ...]

    @property
    def tokens(self) -> int:
        return sum(self.features)

    @property
    def length(self) -> int:
        """Tokens of all parts, texts counted as one each: what a row grows by, about."""
        return sum(count for _, count in self.runs)

    def text(self, names: Mapping[str, str], *, once: bool = False) -> str:
        """Return the text in place of a mark; ``names``: the token of each part; ``once``: one a run."""
        return "".join(names.get(part, part) * (1 if once else count) for part, count in self.runs)

    @property
    def features(self) -> tuple[int, ...]:
        """The tokens of each run of features."""
        return tuple(count for part, count in self.runs if part == "image")


def image_layout(settings: ImageSettings, width: int, height: int, *, alone: bool = True) -> ImageLayout:
    """Return the tokens of a picture; ``alone``: its row has no other. Raises ValueError, ConfigError."""
    width, height = scaled_size(width, height, settings.min_pixels, settings.max_pixels)
    return ImageLayout(_LAYOUTS[settings.family.layout](settings, width, height, alone))


def _grid(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """Patches in a grid, merged by squares (Qwen-VL)."""
    factor = s.number("patch_size") * s.number("merge_size")
    rows, columns = grid_size(
        height, width, factor, s.edge("shortest_edge") or 0, s.edge("longest_edge") or 0
    )
    return (("image", rows * columns),)


def _frames_grid(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """The same, with bounds on the pixels of a picture that is repeated as frames (GLM-4V)."""
    factor = s.number("patch_size") * s.number("merge_size")
    bounds = (s.edge("shortest_edge") or 0, s.edge("longest_edge") or 0)
    rows, columns = with_frames_size(height, width, factor, s.number("temporal_patch_size"), bounds)
    return (("image", rows * columns),)


def _pan_and_scan(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """One square of soft tokens, and one for each crop of a long picture (Gemma 3)."""
    square: tuple[Run, ...] = (
        *(("\n\n", 1), ("start", 1)),
        *(("image", s.whole("image_seq_length")), ("end", 1), ("\n\n", 1)),
    )
    crops = pan_and_scan_crops(s.images, width, height) if s.images.get("do_pan_and_scan") else 0
    if not crops:
        return square
    first: tuple[Run, ...] = (("Here is the original image ", 1), *square)
    rest = [run for number in range(crops) for run in ([(" ", 1)] if number else []) + [*square]]
    return (*first, (" and here are some crops to help you see better ", 1), *rest)


def _soft_tokens(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """As many pooled patches as fit, in the picture's own shape (Gemma 4)."""
    kernel = s.number("pooling_kernel_size")
    count = gemma_size(height, width, s.number("patch_size") * kernel, s.number("max_soft_tokens"))
    return (("start", 1), ("image", count), ("end", 1))


def _tiles(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """Tiles in the arrangement nearest to the picture's shape, and a small whole (InternVL)."""
    tiles, most = 1, s.number("max_patches")
    if s.images.get("crop_to_patches") and most > 1:
        size = (s.edge("height") or 0, s.edge("width") or 0)
        columns, rows = best_canvas((height, width), size, s.number("min_patches"), most)
        tiles = columns * rows + (columns * rows > 1)
    return (("start", 1), ("image", s.whole("image_seq_length") * tiles), ("end", 1))


def _fixed(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """All pictures have one size (LLaVA 1.5)."""
    tall, wide = _cropped(s, width, height)
    patch = s.whole("patch_size")
    return (
        ("image", _chosen(s, (tall // patch) * (wide // patch) + s.whole("num_additional_image_tokens"))),
    )


def _cropped(s: ImageSettings, width: int, height: int) -> tuple[int, int]:
    """Return (height, width) of the picture as the tower sees it."""
    if s.images.get("do_center_crop"):
        return s.edge("height", "crop_size") or 0, s.edge("width", "crop_size") or 0
    if not s.images.get("do_resize", True):
        return height, width
    if (side := s.edge("shortest_edge")) is None:
        return s.edge("height") or 0, s.edge("width") or 0
    if s.images.get("do_pad"):
        return side, side
    long = int(side * max(width, height) / min(width, height))
    return (long, side) if height > width else (side, long)


def _chosen(s: ImageSettings, count: int) -> int:
    """Return the features that the model takes of ``count``: without the first, by default."""
    return count - (s.processor.get("vision_feature_select_strategy") == "default")


def _any_resolution(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """A small whole, and tiles of the grid that fits best, without the rows that only pad (LLaVA-NeXT)."""
    side = s.edge("shortest_edge") or min(s.edge("height") or 0, s.edge("width") or 0)
    tile = s.edge("height", "crop_size") if s.images.get("do_center_crop", True) else side
    assert tile is not None
    patches = tile // s.whole("patch_size")
    tall, wide = best_resolution(height, width, resolutions(s.images.get("image_grid_pinpoints")))
    rows, columns = unpadded(height, width, patches * (tall // tile), patches * (wide // tile))
    base = patches * patches + s.whole("num_additional_image_tokens")
    return (("image", _chosen(s, rows * columns + rows + base)),)


def _bounded_resolution(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """The same with a bound on the tiles' features; several pictures of a row have none (LLaVA-OneVision)."""
    base = s.whole("num_image_tokens")
    if not alone:
        return (("image", _chosen(s, base + 1)),)
    side = s.edge("height") or s.edge("shortest_edge") or 0
    patches = math.isqrt(base)
    tall, wide = best_resolution(height, width, resolutions(s.images.get("image_grid_pinpoints")))
    rows, columns = unpadded(height, width, patches * (tall // side), patches * (wide // side))
    most = int(str(s.processor.get("vision_aspect_ratio")).rpartition("_")[2])
    if (ratio := math.sqrt(rows * columns / (most * patches**2))) > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return (("image", _chosen(s, rows * columns + rows + base)),)


def _rows(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """Rows of patches, each ended by a token of its own (Pixtral)."""
    patch = s.whole("patch_size") * s.whole("spatial_merge_size")
    longest = s.edge("longest_edge")
    bounds = (longest, longest) if longest else (s.edge("height") or 0, s.edge("width") or 0)
    rows, columns = rows_size(height, width, bounds, patch)
    between: list[Run] = [run for _ in range(rows - 1) for run in (("image", columns), ("break", 1))]
    return (*between, ("image", columns), ("end", 1))


def _split(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """Tiles with their row and column, line by line, then the whole (Idefics 3, SmolVLM)."""
    count = s.whole("image_seq_len")
    whole: tuple[Run, ...] = (("fake", 1), ("global", 1), ("image", count), ("fake", 1))
    tile = s.edge("longest_edge", "max_image_size") or 0
    if not s.images.get("do_image_splitting"):
        return whole
    rows, columns = split_grid(height, width, s, tile)
    if not rows:
        return whole
    runs: list[Run] = []
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            runs += [("fake", 1), (f"<row_{row}_col_{column}>", 1), ("image", count)]
        runs.append(("\n", 1))
    return (*runs, ("\n", 1), *whole)


def _best_fit(s: ImageSettings, width: int, height: int, alone: bool) -> tuple[Run, ...]:
    """Tiles of the canvas that fits best, separated, then the whole (Llama 4)."""
    side = s.edge("height") or 0
    ratio = round(1 / as_number(s.processor.get("pixel_shuffle_ratio")) ** 2)
    count = (side // s.whole("patch_size")) ** 2 // ratio
    rows, columns = best_fit(
        height, width, side, s.number("max_patches"), bool(s.images.get("resize_to_max_canvas"))
    )
    line: list[Run] = [run for _ in range(columns - 1) for run in (("image", count), ("column", 1))]
    lines = [*line, ("image", count), ("row", 1)] * rows if rows * columns > 1 else []
    return (("start", 1), *lines, ("mark", 1), ("image", count), ("end", 1))


_LAYOUTS: Mapping[str, Callable[[ImageSettings, int, int, bool], tuple[Run, ...]]] = {
    "grid": _grid,
    "frames_grid": _frames_grid,
    "pan_and_scan": _pan_and_scan,
    "soft_tokens": _soft_tokens,
    "tiles": _tiles,
    "fixed": _fixed,
    "any_resolution": _any_resolution,
    "bounded_resolution": _bounded_resolution,
    "rows": _rows,
    "split": _split,
    "best_fit": _best_fit,
}
