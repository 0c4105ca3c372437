"""ZeRO's partitions as shards of plain parameters, and back, bit for bit. Nothing of DeepSpeed's own (pickled) checkpoints is used.

A rank's part of a parameter is a range of its flattened elements. Where all cuts of a parameter fall between rows, every rank's range is a
block and is yielded as it lies in memory; a parameter that is cut inside a row (at most one or two a partition under ZeRO-1 and 2) is
gathered, and the rank that holds its beginning yields the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.plan.mesh import Mesh
from paceline.runtime.world import World
from paceline.seam.shard import PARAM, Shard, ShardReader
from paceline.strategies import state
from paceline.strategies.deepspeed_parts import Part, finish_import, local_parts
from paceline.strategies.handle import Handle

STEP = "step"
SCALER_KINDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@dataclass(frozen=True)
class Spread:
    """How one parameter lies over the ranks: its local shape, and each rank's (start, count) of flattened elements; None where it has none."""

    shape: tuple[int, ...]
    ranges: tuple[tuple[int, int] | None, ...]

    @property
    def rectangular(self) -> bool:
        """Whether every range is made of whole rows."""
        row = prod(self.shape[1:])
        return all(r is None or (r[0] % row == 0 and r[1] % row == 0) for r in self.ranges)


def export_state(handle: Handle, world: World, mesh: Mesh) -> Iterator[Shard]:
    """This rank's shards. Collective: parameters cut inside a row are gathered, in the same order on every rank."""
    engine: Any = handle.module
    if handle.optimizer is None or not engine.zero_optimization():
        yield from state.export_state(handle, world.rank, world.world_size)
        return
    named = dict(handle.root.plain_named_parameters())  # type: ignore[operator]
    trained = {name: p for name, p in named.items() if p.requires_grad}
    parts = {id(part.parameter): part for part in local_parts(engine)}
    spreads = _spreads(trained, parts, world)
    role = handle.role.value
    for name, parameter in trained.items():
        part, spread = parts.get(id(parameter)), spreads[name]
        if part is not None and part.start == 0 and part.step is not None:
            yield Shard(role, name, STEP, (), (), part.step)
        if spread.rectangular:
            yield from _blocks(role, name, part, spread)
        else:
            yield from _gathered(role, name, parameter, part, world)
    yield from _frozen(role, {n: p for n, p in named.items() if not p.requires_grad}, world)
    yield from _scaler(role, engine, world)


def import_state(handle: Handle, reader: ShardReader, world: World, mesh: Mesh) -> None:
    """Every rank reads the ranges it holds. Raises CheckpointError when a tensor is missing or has another shape."""
    engine: Any = handle.module
    if handle.optimizer is None or not engine.zero_optimization():
        state.import_state(handle, reader)
        return
    named = dict(handle.root.plain_named_parameters())  # type: ignore[operator]
    names = {id(p): name for name, p in named.items()}
    role = handle.role.value
    for part in local_parts(engine, writing=True):
        name = names[id(part.parameter)]
        check_tensor(reader, role, name, part.shape)
        for kind in reader.kinds(role, name):
            if kind == STEP:
                part.set_step(reader.read(role, name, STEP))
            else:
                values = read_range(reader, role, name, kind, part.shape, part.start, part.count)
                (part.master if kind == PARAM else part.moment(kind)).copy_(values)
    for name, parameter in named.items():
        if not parameter.requires_grad:
            _read_frozen(parameter, reader, role, name)
    _read_scaler(role, engine, reader)
    finish_import(engine)
    handle.root.refresh_compute_weights()  # type: ignore[operator]


def check_tensor(reader: ShardReader, role: str, name: str, shape: tuple[int, ...]) -> None:
    """Raise CheckpointError unless the checkpoint has this parameter in this shape."""
    if not reader.has(role, name, PARAM):
        raise CheckpointError(
            Diagnostic(
                "checkpoint.missing_tensor",
                f"the checkpoint has no '{name}' ({PARAM}) for the {role}",
                found=name,
                hint="the config's model must be the one that was saved",
            )
        )
    if tuple(reader.shape(role, name, PARAM)) != shape:
        raise CheckpointError(
            Diagnostic(
                "checkpoint.shape",
                f"'{name}' has another shape in the checkpoint",
                found=f"{tuple(reader.shape(role, name, PARAM))}, the model has {shape}",
                hint="the config's model (and its vocabulary) must be the one that was saved",
            )
        )


def read_range(
    reader: ShardReader, role: str, name: str, kind: str, shape: tuple[int, ...], start: int, count: int
) -> Tensor:
    """``count`` elements from ``start`` of the flattened tensor: its rows are read, the ends cut off."""
    if not shape:
        return reader.read(role, name, kind).flatten()
    row = prod(shape[1:])
    first, last = start // row, -(-(start + count) // row)
    rows = reader.read_block(role, name, kind, (first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    return rows.flatten()[start - first * row : start - first * row + count]


def _spreads(trained: dict[str, nn.Parameter], parts: dict[int, Part], world: World) -> dict[str, Spread]:
    """Every rank's ranges, by parameter: a list of pairs of numbers a rank."""
    mine = []
    shapes = {}
    for name, parameter in trained.items():
        part = parts.get(id(parameter))
        mine.append([part.start, part.count] if part is not None else None)
        shapes[name] = tuple(getattr(parameter, "ds_shape", parameter.shape))
    everyone = world.all_gather_json(mine)
    return {
        name: Spread(shapes[name], tuple((r[i][0], r[i][1]) if r[i] is not None else None for r in everyone))
        for i, name in enumerate(trained)
    }


def _blocks(role: str, name: str, part: Part | None, spread: Spread) -> Iterator[Shard]:
    """This rank's range as a block of rows: views, not copies."""
    if part is None or not part.count:
        return
    row = prod(spread.shape[1:])
    shape = (part.count // row, *spread.shape[1:]) if spread.shape else ()
    offsets = (part.start // row, *(0 for _ in spread.shape[1:])) if spread.shape else ()
    for kind, values in part.tensors().items():
        yield Shard(role, name, kind, spread.shape, offsets, values.view(shape))


def _gathered(role: str, name: str, parameter: nn.Parameter, part: Part | None, world: World) -> Iterator[Shard]:
    """The whole parameter, yielded by the rank that holds its first element."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    kinds = sorted({kind for each in world.all_gather_json(sorted(part.moments) if part else []) for kind in each})
    whole = {PARAM: safe_get_full_fp32_param(parameter)}
    whole |= {kind: safe_get_full_optimizer_state(parameter, kind) for kind in kinds}
    if part is not None and part.start == 0:
        for kind, values in whole.items():
            yield Shard(role, name, kind, tuple(values.shape), (0,) * values.ndim, values.detach().cpu())


def _frozen(role: str, frozen: dict[str, nn.Parameter], world: World) -> Iterator[Shard]:
    """Parameters outside of the optimizer: whole on every rank, or ZeRO-3 partitions that are gathered one at a time."""
    sizes = {name: int(getattr(p, "ds_numel", p.numel())) * p.element_size() for name, p in frozen.items()}
    owner = state.assign(sizes, world.world_size)
    for name, parameter in frozen.items():
        values = whole_frozen(parameter)
        if owner[name] == world.rank:
            yield Shard(role, name, PARAM, tuple(values.shape), (0,) * values.ndim, values)


def whole_frozen(parameter: nn.Parameter) -> Tensor:
    """The values of a frozen parameter; a copy when they had to be gathered (collective)."""
    if not hasattr(parameter, "ds_id"):
        return parameter.detach()
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([parameter]):
        return parameter.detach().clone().cpu()


def _read_frozen(parameter: nn.Parameter, reader: ShardReader, role: str, name: str) -> None:
    if not reader.has(role, name, PARAM):  # an adapter's checkpoint leaves the base model out
        return
    with torch.no_grad():
        if not hasattr(parameter, "ds_id"):
            parameter.copy_(reader.read(role, name, PARAM))
            return
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([parameter], modifier_rank=0):
            if parameter.numel():
                parameter.copy_(reader.read(role, name, PARAM))


def _scaler(role: str, engine: Any, world: World) -> Iterator[Shard]:
    """DeepSpeed's dynamic loss scale (fp16), once."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if world.rank == 0 and scaler is not None and getattr(scaler, "dynamic", False):
        for kind in SCALER_KINDS:
            value = torch.tensor(float(getattr(scaler, kind)), dtype=torch.float64)
            yield Shard(role, state.SCALER, kind, (), (), value)


def _read_scaler(role: str, engine: Any, reader: ShardReader) -> None:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is None or not reader.has(role, state.SCALER, SCALER_KINDS[0]):
        return
    for kind in SCALER_KINDS:
        value = float(reader.read(role, state.SCALER, kind))
        setattr(scaler, kind, value if kind == SCALER_KINDS[0] else int(value))
