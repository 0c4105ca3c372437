"""Optimizer states in 8 and 4 bits in checkpoints: bit for bit on the same shards, dequantised on others.

A quantised moment is codes and an fp32 scale per block of a rank's tensor, so it cannot be cut elsewhere. It
is saved under kinds that name the shard: ``state1@0,0+64,128`` are the codes of the block of shape (64, 128)
at (0, 0). A rank that holds the same shard takes them as they are; any other rank dequantises the shards that
overlap with its own, joins them in fp32, and quantises anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from paceline.protocols.shard import BUFFER, PARAM, ShardReader
from paceline.strategies.optimizers import bitsandbytes_state, torchao_state
from paceline.strategies.optimizers.bitsandbytes_state import BitsAndBytes
from paceline.strategies.optimizers.torchao_state import TorchAO

_AT = "@"
Shape = tuple[int, ...]
Slices = tuple["slice[int, int, None]", ...]


class Codec(Protocol):
    """How one library stores quantised moments of one tensor."""

    def parts(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        """Return codes, scales and unquantised moments by name, without lookup tables and step counts."""
        ...

    def values(self, parts: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        """Return the moments of a shard of ``shape`` in fp32."""
        ...

    def fill(self, parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's state from ``parts`` of the same shard, bit for bit."""
        ...

    def quantise(self, parameter: nn.Parameter, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's state from fp32 moments."""
        ...


def codec_of(optimizer: torch.optim.Optimizer | None) -> Codec | None:
    """Return the codec of an optimizer with quantised moments; None for any other.

    ``ZeroRedundancyOptimizer`` has the optimizer of its own tensors in ``optim``.
    """
    inner = getattr(optimizer, "optim", optimizer)
    libraries = {cls.__module__.partition(".")[0] for cls in type(inner).__mro__}
    if "torchao" in libraries:
        return TorchAO(cast(torchao_state.AoOptimizer, inner))
    if "bitsandbytes" in libraries and inner.args.optim_bits == 8:  # type: ignore[union-attr]
        return BitsAndBytes(cast(bitsandbytes_state.BnbOptimizer, inner))
    return None


def is_of_shard(kind: str) -> bool:
    """Whether a kind belongs to one shard of one layout (``state1@0,0+64,128``)."""
    return _AT in kind


def shard_suffix(offsets: Shape, shape: Shape) -> str:
    """Return the suffix of the kinds of the shard of ``shape`` at ``offsets``."""
    return f"{_AT}{','.join(map(str, offsets))}+{','.join(map(str, shape))}"


def shard_parts(codec: Codec, state: Mapping[str, object], offsets: Shape, shape: Shape) -> dict[str, Tensor]:
    """Return what a checkpoint holds of a shard's moments, by kind."""
    return {
        name + shard_suffix(offsets, shape): tensor
        for name, tensor in codec.parts(state).items()
        if tensor.numel()
    }


def read_state(
    codec: Codec, parameter: nn.Parameter, offsets: Shape, reader: ShardReader, role: str, name: str
) -> dict[str, Tensor] | None:
    """Return the optimizer's state of ``parameter``, the shard at ``offsets`` of the tensor ``name``, without
    its step count; None if the checkpoint has no moments of it.
    """
    kinds = [k for k in reader.kinds(role, name) if k not in (PARAM, BUFFER)]
    of_shards = sorted(filter(is_of_shard, kinds))
    if not kinds:
        return None
    shape = tuple(parameter.shape)
    here = shard_suffix(offsets, shape)
    own = {k.removesuffix(here): reader.read(role, name, k) for k in of_shards if k.endswith(here)}
    if own or not parameter.numel():
        return codec.fill(parameter, own)
    joined: dict[str, Tensor] = {}
    for suffix in sorted({_AT + k.partition(_AT)[2] for k in of_shards}):
        saved_at, saved_shape = _parsed(suffix)
        overlap = _overlap(offsets, shape, saved_at, saved_shape)
        if overlap is None:
            continue
        target, source = overlap
        parts = {k.removesuffix(suffix): reader.read(role, name, k) for k in of_shards if k.endswith(suffix)}
        for moment, values in codec.values(parts, saved_shape).items():
            joined.setdefault(moment, torch.zeros(shape))[target] = values[source]
    return codec.quantise(parameter, joined)


def _parsed(suffix: str) -> tuple[Shape, Shape]:
    offsets, _, shape = suffix.removeprefix(_AT).partition("+")
    numbers = [tuple(map(int, part.split(","))) if part else () for part in (offsets, shape)]
    return numbers[0], numbers[1]


def _overlap(at: Shape, shape: Shape, saved_at: Shape, saved_shape: Shape) -> tuple[Slices, Slices] | None:
    """Return the common block of two shards, as slices of each; None if there is none."""
    low = [max(a, b) for a, b in zip(at, saved_at, strict=True)]
    high = [min(a + n, b + m) for a, n, b, m in zip(at, shape, saved_at, saved_shape, strict=True)]
    if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
        return None
    return (
        tuple(slice(lo - a, hi - a) for lo, hi, a in zip(low, high, at, strict=True)),
        tuple(slice(lo - b, hi - b) for lo, hi, b in zip(low, high, saved_at, strict=True)),
    )
