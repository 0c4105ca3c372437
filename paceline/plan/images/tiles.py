"""Pictures cut into tiles: how many, and in which arrangement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from paceline.core.json_types import Json, as_number
from paceline.plan.images.settings import ImageSettings

_MOST_SIDE = 4096  # pixels of the longest edge that Idefics 3 ever sees


def pan_and_scan_crops(options: Mapping[str, Json], width: int, height: int) -> int:
    """Return the crops of a long picture beside the whole; 0 for a picture that is not so long."""
    long, short = max(width, height), min(width, height)
    least = as_number(options["pan_and_scan_min_crop_size"])
    most = int(as_number(options["pan_and_scan_max_num_crops"]))
    if long / short < as_number(options["pan_and_scan_min_ratio_to_activate"]):
        return 0
    crops = min(math.floor(long / least), math.floor(long / short + 0.5))
    crops = min(most, max(2, crops))
    return 0 if min(math.ceil(long / crops), short) < least else crops


@cache
def _arrangements(least: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return (columns, rows) of all arrangements, those with fewer tiles first."""
    numbers = range(1, most + 1)
    pairs = [(c, r) for c in numbers for r in numbers if least <= c * r <= most]
    return tuple(sorted(pairs, key=lambda pair: pair[0] * pair[1]))


@lru_cache(maxsize=4096)
def best_canvas(size: tuple[int, int], tile: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """Return (columns, rows) of the arrangement nearest to the shape of ``size``, (height, width).

    Of equally near ones the larger, while the picture has more than half its pixels.
    """
    (height, width), best, nearest = size, (1, 1), math.inf
    for columns, rows in _arrangements(least, most):
        distance = abs(width / height - columns / rows)
        large = width * height > 0.5 * tile[0] * tile[1] * columns * rows
        if distance < nearest or (distance == nearest and large):
            nearest, best = distance, (columns, rows)
    return best


def best_resolution(height: int, width: int, among: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return (height, width) of the resolution that keeps most of a picture, and pads least."""
    best, kept, wasted = (0, 0), 0, math.inf
    for tall, wide in among:
        scale = min(wide / width, tall / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        waste = wide * tall - effective
        if effective > kept or (effective == kept and waste < wasted):
            best, kept, wasted = (tall, wide), effective, waste
    if not kept:
        raise ValueError(f"{width} x {height} pixels fit no resolution of the processor")
    return best


def unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Return (rows, columns) of features without those that only pad a picture to the grid's shape."""
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return rows, columns


def split_grid(height: int, width: int, settings: ImageSettings, tile: int) -> tuple[int, int]:
    """Return (rows, columns) of tiles; (0, 0) for a picture that is one tile."""
    if settings.images.get("do_resize", True):
        if (longest := settings.edge("longest_edge")) is not None:
            height, width = _below(*_scaled(height, width, longest))
        else:
            height, width = settings.edge("height") or 0, settings.edge("width") or 0
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return (height // tile, width // tile) if height > tile or width > tile else (0, 0)


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """Scale the longer edge to ``longest``; the other becomes even."""
    ratio = width / height
    if width >= height:
        short = int(longest / ratio)
        return max(short + short % 2, 1), longest
    short = int(longest * ratio)
    return longest, max(short + short % 2, 1)


def _below(height: int, width: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > _MOST_SIDE:
        return max(int(_MOST_SIDE / ratio), 1), _MOST_SIDE
    if height > width and height > _MOST_SIDE:
        return _MOST_SIDE, max(int(_MOST_SIDE * ratio), 1)
    return height, width


def best_fit(height: int, width: int, side: int, most: int, largest: bool) -> tuple[int, int]:
    """Return (rows, columns) of tiles of the canvas that fits a picture without distortion.

    The smallest enlargement (``largest``: the largest) if any canvas allows one, else the smallest reduction;
    of equal ones the smallest canvas.
    """
    canvases = _canvases(most)
    scales = [_scale(height, width, rows * side, columns * side) for rows, columns in canvases]
    larger = [scale for scale in scales if scale >= 1]
    chosen = (max(larger) if largest else min(larger)) if larger else max(scales)
    fitting = [canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen]
    return min(fitting, key=lambda canvas: canvas[0] * canvas[1])


@cache
def _canvases(most: int) -> tuple[tuple[int, int], ...]:
    """Return (rows, columns) of all canvases, in the order in which equal ones are preferred."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return tuple(canvas for canvases in by_ratio.values() for canvas in canvases)


def _scale(height: int, width: int, tall: int, wide: int) -> float:
    """Return the factor of the limiting side, in single precision, as the processor computes it."""
    return min(_single(tall / height), _single(wide / width))


def _single(value: float) -> float:
    import struct

    return float(struct.unpack("f", struct.pack("f", value))[0])
