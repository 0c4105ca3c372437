"""What ``flex_attention`` asks of a device: FLOPs of the blocks of scores that are not empty, and results
without numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from emulated_flex import BLOCK
from emulated_tensor import DeviceTensor
from torch import Tensor

from paceline.models.attention.flex_attention import VisibleKeys


def flex_flops(name: str, args: Any) -> float:
    """Of the blocks of scores that are not empty. Forward: scores and output; backward, in torch's template:
    scores and their gradient twice (for queries, for keys), and a product for each of the three gradients.
    """
    query, value = (args[2], args[4]) if name == "flex_backward" else (args[0], args[2])
    first = args[-5]
    wide, deep = query.shape[3], value.shape[3]
    products = 4 * wide + 3 * deep if name == "flex_backward" else wide + deep
    return float(2 * query.shape[1] * BLOCK**2 * first.numbers.block_count * products)


def _flex(query: DeviceTensor, key: DeviceTensor, value: DeviceTensor, *_: Any) -> tuple[Tensor, ...]:
    heads = query.shape[:3]
    shapes = (((*heads, value.shape[3]), query.dtype), (heads, torch.float32))
    return tuple(DeviceTensor(torch.empty(s, dtype=d), query.machine) for s, d in shapes)


def _flex_delta(grad: DeviceTensor, *_: Any) -> Tensor:
    return DeviceTensor(torch.empty(grad.shape[:3], dtype=torch.float32), grad.machine)


def _flex_backward(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(DeviceTensor(torch.empty_like(x.numbers), x.machine) for x in inputs[2:5])


FLEX_WITHOUT_NUMBERS = {
    "emulated::flex": _flex,
    "emulated::flex_delta": _flex_delta,
    "emulated::flex_backward": _flex_backward,
}


def blocks_of(bounds: Sequence[int], window: int | None) -> int:
    """Blocks of scores that are not empty in a causal mask over documents; counted row by row."""
    found = 0
    for row in range(0, bounds[-1], BLOCK):
        start = bounds[bisect_right(bounds, row) - 1]
        begin = start if window is None else max(start, row - window + 1)
        found += (min(row + BLOCK, bounds[-1]) - 1) // BLOCK - begin // BLOCK + 1
    return found


def visible_and_counted(bounds: Sequence[int]) -> Callable[..., VisibleKeys]:
    """``VisibleKeys.of``, whose first keys know how many blocks there are: no tensor has numbers here."""
    made = VisibleKeys.of

    def of(*args: Any) -> VisibleKeys:
        seen = made(*args)
        seen.first.numbers.block_count = blocks_of(bounds, args[3])  # type: ignore[attr-defined]
        return seen

    return of
