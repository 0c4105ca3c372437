"""Bytes of an optimizer's states for one tensor.

Each function takes the tensor's shape on a rank, ``optim_args`` and the bytes of an element of the master
weights; step counters are not included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from paceline.core.json_types import Json

Shape = tuple[int, ...]
Arguments = Mapping[str, Json]
StateBytes = Callable[[Shape, Arguments, int], int]

_FP32 = 4
#: bitsandbytes 0.50 (``Optimizer2State.init_state``) and torchao 0.18 (``_new_buffer``): smaller tensors stay
#: in floating point
SMALLEST_QUANTISED = 4096
BNB_BLOCK = 256


def _number(value: Json, default: int) -> int:
    return int(value) if isinstance(value, (int, float)) and value else default


def on(value: Json) -> bool:
    """Whether a switch of ``optim_args`` is on; its value may be a text."""
    return value in (True, "true", "True")


def adam(shape: Shape, args: Arguments, size: int) -> int:
    """Two moments; a third one with amsgrad."""
    return size * prod(shape) * (3 if on(args.get("amsgrad")) else 2)


def sgd(shape: Shape, args: Arguments, size: int) -> int:
    """A momentum, if it is not 0."""
    return size * prod(shape) * bool(args.get("momentum"))


def rmsprop(shape: Shape, args: Arguments, size: int) -> int:
    """Mean squares; a momentum and mean gradients on request."""
    return size * prod(shape) * (1 + bool(args.get("momentum")) + on(args.get("centered")))


def one(shape: Shape, args: Arguments, size: int) -> int:
    """One value per element."""
    return size * prod(shape)


def two(shape: Shape, args: Arguments, size: int) -> int:
    """Two values per element."""
    return 2 * size * prod(shape)


def factored(shape: Shape, args: Arguments, size: int) -> int:
    """A row and a column of means for a matrix, all of a vector; with beta1 also a full first moment.

    Transformers' Adafactor computes bfloat16 gradients in fp32, and keeps their means so.
    """
    count, size = prod(shape), max(size, _FP32)
    first = count if args.get("beta1") is not None else 0
    return size * (first + (count // shape[-1] + count // shape[-2] if len(shape) >= 2 else count))


def fp32_moments(count: int) -> StateBytes:
    """``count`` moments in fp32, whatever the master weights are."""
    return lambda shape, args, size: count * _FP32 * prod(shape)


def bnb_8bit(count: int) -> StateBytes:
    """``count`` moments of a byte per element and an fp32 scale per block of 256; fp32 for small tensors."""

    def found(shape: Shape, args: Arguments, size: int) -> int:
        elements = prod(shape)
        if elements < _number(args.get("min_8bit_size"), SMALLEST_QUANTISED):
            return count * _FP32 * elements
        return count * (elements + _FP32 * -(-elements // BNB_BLOCK))

    return found


def torchao(bits: int, block: int) -> StateBytes:
    """Adam's moments of ``bits`` per element, an fp32 scale per block, and a table of 2^bits fp32 values.

    Tensors that are small or not a multiple of the block keep the dtype of the master weights.
    """

    def found(shape: Shape, args: Arguments, size: int) -> int:
        elements, each = prod(shape), _number(args.get("block_size"), block)
        moments = 3 if on(args.get("amsgrad")) else 2
        if elements < SMALLEST_QUANTISED or elements % each:
            return moments * size * elements
        return moments * (elements * bits // 8 + _FP32 * (elements // each) + _FP32 * 2**bits)

    return found


def of_rows(shape: Shape, args: Arguments, size: int) -> int:
    """Adam-mini's moment of every number, and one of each row; of a vector two, as for a bias."""
    return size * (prod(shape) + (shape[0] if shape else 1))


def projected(shape: Shape, args: Arguments, size: int) -> int:
    """GaLore's two moments of a matrix's projected gradient, and its basis
    (``strategies.optimizers.galore_adamw``).
    """
    rows, columns = shape
    rank, kind = _number(args.get("rank"), 128), args.get("proj_type") or "std"
    rank = min(rank, rows, columns)
    if kind == "full":
        return size * rank * (2 * rank + rows + columns)
    right = {"right": True, "left": False, "std": rows >= columns}.get(str(kind), rows < columns)
    kept, gone = (rows, columns) if right else (columns, rows)
    return size * rank * (2 * kept + gone)
