"""Optimizer states in 8 and 4 bits in checkpoints: bit for bit on the same shards, dequantised on others.

A quantised moment is codes and an fp32 scale per block of a rank's tensor, so it cannot be cut elsewhere. It
is saved under kinds that name the shard: ``state1@0,0+64,128`` are the codes of the block of shape (64, 128)
at (0, 0). A rank that holds the same shard takes them as they are. Any other rank dequantises the shards that
overlap with its own, joins them in fp32, and quantises anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from paceline.protocols.shard import BUFFER, PARAM, ShardReader

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
    # By the module's name: importing either library to compare classes costs seconds and may fail.
    libraries = {cls.__module__.partition(".")[0] for cls in type(inner).__mro__}
    if "torchao" in libraries:
        return TorchAO(cast(AoOptimizer, inner))
    if "bitsandbytes" in libraries and inner.args.optim_bits == 8:  # type: ignore[union-attr]
        return BitsAndBytes(cast(BnbOptimizer, inner))
    return None


def is_of_shard(kind: str) -> bool:
    """Whether a kind belongs to one shard of one layout (``state1@0,0+64,128``)."""
    return _AT in kind


def shard_suffix(offsets: Shape, shape: Shape) -> str:
    """Return the suffix of the kinds of the shard of ``shape`` at ``offsets``."""
    return f"{_AT}{','.join(map(str, offsets))}+{','.join(map(str, shape))}"


def shard_parts(codec: Codec, state: Mapping[str, object], offsets: Shape, shape: Shape) -> dict[str, Tensor]:
    """Return a shard's moments as a checkpoint stores them, by kind."""
    return {
        name + shard_suffix(offsets, shape): tensor
        for name, tensor in codec.parts(state).items()
        if tensor.numel()
    }


def read_state(
    codec: Codec, parameter: nn.Parameter, offsets: Shape, reader: ShardReader, role: str, name: str
) -> dict[str, Tensor] | None:
    """Return the optimizer's state of ``parameter``, the shard at ``offsets`` of the tensor ``name``, without
    its step count. None if the checkpoint has no moments of it.
    """
    kinds = [k for k in reader.kinds(role, name) if k not in (PARAM, BUFFER)]
    of_shards = sorted(filter(is_of_shard, kinds))
    if not kinds:
        return None
    shape = tuple(parameter.shape)
    here = shard_suffix(offsets, shape)
    # Same offsets and shape as at the save: codes are taken as they are, bit for bit.
    parts_here = {k.removesuffix(here): reader.read(role, name, k) for k in of_shards if k.endswith(here)}
    # an empty shard has nothing to join
    if parts_here or not parameter.numel():
        return codec.fill(parameter, parts_here)
    joined: dict[str, Tensor] = {}
    for suffix in sorted({_AT + k.partition(_AT)[2] for k in of_shards}):
        saved_at, saved_shape = _parsed(suffix)
        overlap = _overlap(offsets, shape, saved_at, saved_shape)
        if overlap is None:
            continue
        target, source = overlap
        parts = {k.removesuffix(suffix): reader.read(role, name, k) for k in of_shards if k.endswith(suffix)}
        for moment, values in codec.values(parts, saved_shape).items():
            # Other shards overlap with this one in part; what none covers stays zero, as before the first
            # step.
            joined.setdefault(moment, torch.zeros(shape))[target] = values[source]
    return codec.quantise(parameter, joined)


def _parsed(suffix: str) -> tuple[Shape, Shape]:
    offsets, _, shape = suffix.removeprefix(_AT).partition("+")
    numbers = [tuple(map(int, part.split(","))) if part else () for part in (offsets, shape)]
    return numbers[0], numbers[1]


def _overlap(
    offsets: Shape, shape: Shape, saved_at: Shape, saved_shape: Shape
) -> tuple[Slices, Slices] | None:
    """Return the common block of two shards, as slices of each; None if there is none."""
    low = [max(a, b) for a, b in zip(offsets, saved_at, strict=True)]
    high = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, saved_at, saved_shape, strict=True)]
    # Half-open blocks that only touch have nothing in common.
    if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
        return None
    return (
        tuple(slice(lo - a, hi - a) for lo, hi, a in zip(low, high, offsets, strict=True)),
        tuple(slice(lo - b, hi - b) for lo, hi, b in zip(low, high, saved_at, strict=True)),
    )


_CODES, _SCALE = ".codes", ".scale"
_SIGNED = "exp_avg"  # the first moment; squares have no sign


class Quantised(Protocol):
    """What the codec uses of ``OptimState8bit`` and ``OptimState4bit``."""

    codes: Tensor
    scale: Tensor

    def dequantize(self, output_dtype: torch.dtype) -> Tensor: ...


class AoOptimizer(Protocol):
    """What the codec uses of ``torchao.optim.adam._AdamBase``."""

    param_groups: list[dict[str, list[nn.Parameter]]]

    def _new_buffer(self, p: Tensor, signed: bool) -> Tensor: ...

    def _subclass_zeros(self, p: Tensor, signed: bool, block_size: int) -> Quantised: ...


class TorchAO:
    """The codec of ``torchao.optim``: tensor subclasses of codes, a scale per block, and a lookup table."""

    def __init__(self, optimizer: AoOptimizer) -> None:
        self.optimizer = optimizer

    def parts(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        for name, value in state.items():
            if hasattr(value, "codes") and hasattr(value, "scale"):
                parts |= {name + _CODES: value.codes, name + _SCALE: value.scale}
            elif isinstance(value, Tensor) and name != "step":
                parts[name] = value
        return parts

    def values(self, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
        moments = {}
        for name, value in parts.items():
            if name.endswith(_CODES):
                moment, scale = name.removesuffix(_CODES), parts[name.removesuffix(_CODES) + _SCALE]
                # Elements a scale, as the run that saved had it; the default here may be another.
                block = torch.Size(shape).numel() // scale.numel()
                packed = self.optimizer._subclass_zeros(torch.empty(shape), moment == _SIGNED, block)
                packed.codes.copy_(value)
                packed.scale.copy_(scale)
                moments[moment] = packed.dequantize(torch.float32).view(shape)
            elif not name.endswith(_SCALE):
                moments[name] = value.float()
        return moments

    def fill(self, parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in parts.items():
            moment, _, part = name.partition(".")
            (getattr(state[moment], part) if part else state[moment]).copy_(value)
        return state

    def quantise(self, parameter: nn.Parameter, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in values.items():
            state[name].copy_(value.to(parameter.device))
        return state

    def _empty(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        group = next(g for g in self.optimizer.param_groups if any(p is parameter for p in g["params"]))
        moments = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        return {name: self.optimizer._new_buffer(parameter, name == _SIGNED) for name in moments}


_BLOCK = 256
#: moment → (its scales, its lookup table, the table's name in the optimizer)
_MOMENTS = {"state1": ("absmax1", "qmap1", "dynamic"), "state2": ("absmax2", "qmap2", "udynamic")}
TABLES = frozenset(table for _, table, _ in _MOMENTS.values())  # a KiB each, for all tensors together


class BnbOptimizer(Protocol):
    """What the codec uses of ``bitsandbytes.optim.optimizer.Optimizer8bit``."""

    param_groups: list[dict[str, list[nn.Parameter]]]
    state: dict[nn.Parameter, dict[str, Tensor]]
    name2qmap: dict[str, Tensor]

    def init_state(
        self, group: dict[str, list[nn.Parameter]], p: nn.Parameter, gindex: int, pindex: int
    ) -> None: ...


class BitsAndBytes:
    """The codec of ``bitsandbytes.optim`` with ``optim_bits=8``: codes in a tensor of the parameter's shape,
    and a scale per 256 elements (Dettmers et al. 2022, arXiv:2110.02861).
    """

    def __init__(self, optimizer: BnbOptimizer) -> None:
        self.optimizer = optimizer

    def parts(self, state: Mapping[str, object]) -> dict[str, Tensor]:
        kept = {name for moment, (scales, _, _) in _MOMENTS.items() for name in (moment, scales)}
        return {name: v for name, v in state.items() if name in kept and isinstance(v, Tensor)}

    def values(self, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> dict[str, Tensor]:
        from bitsandbytes.functional import dequantize_blockwise

        moments = {}
        for moment, (scales, _, table) in _MOMENTS.items():
            codes = parts.get(moment)
            if codes is not None and codes.dtype == torch.uint8:
                moments[moment] = dequantize_blockwise(
                    codes, absmax=parts[scales], code=self._table(table, codes.device), blocksize=_BLOCK
                ).view(shape)
            elif codes is not None:
                moments[moment] = codes
        return moments

    def fill(self, parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = self._empty(parameter)
        for name, value in parts.items():
            state[name].copy_(value)
        return state

    def quantise(self, parameter: nn.Parameter, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from bitsandbytes.functional import quantize_blockwise

        state = self._empty(parameter)
        for moment, value in values.items():
            scales, table, _ = _MOMENTS[moment]
            if state[moment].dtype != torch.uint8:
                state[moment].copy_(value)
                continue
            codes, statistics = quantize_blockwise(
                value.to(parameter.device), code=state[table], blocksize=_BLOCK
            )
            state[moment].copy_(codes.view_as(state[moment]))
            state[scales].copy_(statistics.absmax)
        return state

    def _empty(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state that the library itself makes before the first step."""
        indices = [
            (g, i) for g, group in enumerate(self.optimizer.param_groups)
            for i, p in enumerate(group["params"]) if p is parameter
        ]  # fmt: skip
        (group, index), groups = indices[0], self.optimizer.param_groups
        # bitsandbytes writes into the optimizer's own state; it is taken out again below.
        self.optimizer.state[parameter] = {}
        self.optimizer.init_state(groups[group], parameter, group, index)
        state = self.optimizer.state.pop(parameter)
        return {name: value for name, value in state.items() if name != "step"}

    def _table(self, name: str, device: torch.device) -> Tensor:
        return self.optimizer.name2qmap[name].to(device)
