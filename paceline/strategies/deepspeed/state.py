"""ZeRO's partitions as shards of plain parameters, and back, bit for bit. DeepSpeed's own (pickled)
checkpoints are not used.

A rank's part of a parameter is a range of its flattened elements. If all boundaries of a parameter's ranges
fall between rows, every rank's range is a block and is yielded without copying. A parameter split inside a
row (at most one or two per partition under ZeRO-1 and 2) is gathered; the rank with its first element yields
the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from paceline.plan.mesh import Mesh
from paceline.protocols.shard import BUFFER, PARAM, Shard, ShardReader
from paceline.runtime.process_group.world import World
from paceline.strategies import replicated_state
from paceline.strategies.deepspeed.partition_views import (
    ParameterSlice,
    PartitionSlice,
    finish_import,
    is_managed,
    local_parts,
)
from paceline.strategies.model_handle import Handle, storage_bytes
from paceline.strategies.replicated_state import ReadOnce

if TYPE_CHECKING:
    from paceline.strategies.deepspeed.engine_types import Engine, FlatOptimizer, PartitionedOptimizer

STEP = "step"
SCALER_KINDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@dataclass(frozen=True)
class ParameterPartition:
    """The distribution of one parameter over the ranks: its local shape and block, and each data-parallel
    rank's (start, count) of its flattened elements.
    """

    shape: tuple[int, ...]
    place: ParameterSlice
    ranges: tuple[tuple[int, int], ...]

    @property
    def row(self) -> int:
        """Number of elements of a row."""
        return prod(self.shape[1:])

    @property
    def rectangular(self) -> bool:
        """Whether every range consists of whole rows."""
        return all(start % self.row == 0 and count % self.row == 0 for start, count in self.ranges)

    def shard(self, role: str, name: str, kind: str, values: Tensor, start: int) -> Shard:
        """Return whole rows from element ``start`` on as a shard of the whole parameter."""
        if not self.shape:
            return Shard(role, name, kind, (), (), values.view(()))
        offsets = (self.place.offsets[0] + start // self.row, *self.place.offsets[1:])
        return Shard(role, name, kind, self.place.shape, offsets, values.view(-1, *self.shape[1:]))


def export_state(handle: Handle, world: World, mesh: Mesh) -> Iterator[Shard]:
    """Yield this rank's shards. Collective: parameters split inside a row are gathered, in the same order on
    every rank.
    """
    engine = engine_of(handle)
    if engine is None:
        yield from replicated_state.export_state(handle, world.rank, world.world_size)
        return
    # All ranks exchange their ranges, to take the same decision for each parameter.
    parameters = dict(handle.root.plain_named_parameters())
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    parts = {id(part.parameter): part for part in local_parts(engine)}
    tp_rank = mesh.coordinates(world.rank).tp
    spreads = _spreads(trained, parts, world, mesh)
    role = handle.role.value
    # Trained parameters: step counter, then masters and moments.
    for name, parameter in trained.items():
        part, spread = parts.get(id(parameter)), spreads[name]
        # One counter a parameter: from the rank that holds its first element.
        if part is not None and part.start == 0 and part.step is not None and tp_rank == 0:
            yield Shard(role, name, STEP, (), (), part.step)
        if not spread.rectangular:
            yield from _gathered(role, name, parameter, part, spread, world)
        elif part is not None and spread.place.first:
            for kind, values in part.tensors().items():  # views, not copies
                yield spread.shard(role, name, kind, values, part.start)
    yield from _frozen(role, {n: p for n, p in parameters.items() if not p.requires_grad}, world, mesh)
    if world.rank == 0:
        for name, buffer in handle.root.plain_named_buffers():
            yield Shard(role, name, BUFFER, tuple(buffer.shape), (0,) * buffer.ndim, buffer.detach())
    yield from _scaler(role, engine, world)


def import_state(handle: Handle, reader: ShardReader, world: World, mesh: Mesh) -> None:
    """Load the ranges that this rank holds. Raises CheckpointError if a tensor is missing or has another
    shape. Collective.
    """
    engine = engine_of(handle)
    if engine is None:
        replicated_state.import_state(handle, ReadOnce(reader, world))
        return
    parameters = dict(handle.root.plain_named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    role, tp_rank = handle.role.value, mesh.coordinates(world.rank).tp
    # Trained parameters: each partition reads its range of masters and moments.
    for part in local_parts(engine, writing=True):
        name = names[id(part.parameter)]
        place = ParameterSlice.of(name, part.parameter, tp_rank)
        replicated_state.check(reader, role, name, PARAM, place.shape)
        for kind in reader.kinds(role, name):
            if kind == STEP:
                part.set_step(reader.read(role, name, STEP))
            else:
                values = read_range(reader, role, name, kind, place, part)
                (part.master if kind == PARAM else part.moment(kind)).copy_(values)
    # Frozen parameters, buffers and the loss scale; then everything derived from the masters.
    for name, parameter in parameters.items():
        if not parameter.requires_grad and reader.has(role, name, PARAM):  # an adapter's has no base model
            _read_frozen(parameter, reader, role, name, ParameterSlice.of(name, parameter, tp_rank))
    for name, buffer in handle.root.plain_named_buffers():
        buffer.copy_(reader.read(role, name, BUFFER))
    _read_scaler(role, engine, reader)
    finish_import(engine)
    handle.root.refresh_compute_weights()


def engine_of(handle: Handle) -> Engine | None:
    """Return the engine of a trained model; None if the model's parameters are whole: frozen, or stage 0."""
    if handle.optimizer is None:
        return None
    engine = cast("Engine", handle.module)
    return engine if engine.zero_optimization() else None


def read_range(
    reader: ShardReader, role: str, name: str, kind: str, place: ParameterSlice, part: PartitionSlice
) -> Tensor:
    """Return the elements of ``part``: read the rows that contain them, and drop the rest."""
    if not part.shape:
        return reader.read(role, name, kind).flatten()
    row = prod(part.shape[1:])
    first, last = part.start // row, -(-(part.start + part.count) // row)
    offsets = (place.offsets[0] + first, *place.offsets[1:])
    rows = reader.read_block(role, name, kind, offsets, (last - first, *part.shape[1:]))
    begin = part.start - first * row
    return rows.flatten()[begin : begin + part.count]


def _spreads(
    trained: dict[str, nn.Parameter], parts: dict[int, PartitionSlice], world: World, mesh: Mesh
) -> dict[str, ParameterPartition]:
    """Return every parameter's ranges on the ranks with this rank's tensor-parallel coordinate.
    Collective.
    """
    tp_rank = mesh.coordinates(world.rank).tp
    mine = [[p.start, p.count] if (p := parts.get(id(q))) is not None else None for q in trained.values()]
    # A few numbers a parameter; null where a rank holds nothing of it.
    everyone = world.all_gather_json(mine)
    # Ranks with another tp coordinate hold another block of the same parameter.
    alike = [rows for rank, rows in enumerate(everyone) if mesh.coordinates(rank).tp == tp_rank]
    return {
        name: ParameterPartition(
            tuple(getattr(parameter, "ds_shape", parameter.shape)),
            ParameterSlice.of(name, parameter, tp_rank),
            tuple((bounds[0], bounds[1]) for rows in alike if (bounds := rows[i]) is not None),
        )
        for i, (name, parameter) in enumerate(trained.items())
    }


def _gathered(
    role: str,
    name: str,
    parameter: nn.Parameter,
    part: PartitionSlice | None,
    spread: ParameterPartition,
    world: World,
) -> Iterator[Shard]:
    """Gather the whole of the parameter over its data-parallel group; the rank with its first element yields
    it. Collective.
    """
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    # Of all ranks: one without a part of this parameter has no moments of it.
    kinds = sorted(
        {kind for each in world.all_gather_json(sorted(part.moments) if part else []) for kind in each}
    )
    # DeepSpeed's own gather, a collective: every rank of the group calls it, also one without a part.
    full = {PARAM: safe_get_full_fp32_param(parameter)}
    full |= {kind: safe_get_full_optimizer_state(parameter, kind) for kind in kinds}
    if part is not None and part.start == 0 and spread.place.first:
        for kind, values in full.items():
            yield spread.shard(role, name, kind, values.detach().cpu().contiguous(), 0)


def _frozen(role: str, frozen: dict[str, nn.Parameter], world: World, mesh: Mesh) -> Iterator[Shard]:
    """Yield the frozen parameters, divided over the ranks: whole on every rank, or ZeRO-3 partitions that are
    gathered one at a time (collective).
    """
    tp_rank = mesh.coordinates(world.rank).tp
    alike = [rank for rank in range(world.world_size) if mesh.coordinates(rank).tp == tp_rank]
    sizes = {name: int(getattr(p, "ds_numel", p.numel())) * p.element_size() for name, p in frozen.items()}
    # By size, so that no rank writes the whole base model of an adapter.
    owner = replicated_state.assign(sizes, len(alike))
    for name, parameter in frozen.items():
        values, place = whole_frozen(parameter), ParameterSlice.of(name, parameter, tp_rank)
        if alike[owner[name]] == world.rank and place.first:
            yield Shard(role, name, PARAM, place.shape, place.offsets, values)


def whole_frozen(parameter: nn.Parameter) -> Tensor:
    """Return the values of a frozen parameter; a copy if they had to be gathered (collective)."""
    if not is_managed(parameter):
        return parameter.detach()
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([parameter]):
        # A copy: the gathered values are freed when the context ends.
        return parameter.detach().clone().cpu()


def _read_frozen(
    parameter: nn.Parameter, reader: ShardReader, role: str, name: str, place: ParameterSlice
) -> None:
    """Read a frozen parameter whole; ZeRO-3 keeps this rank's partition of it."""
    with torch.no_grad():
        local = tuple(getattr(parameter, "ds_shape", parameter.shape))
        values = reader.read_block(role, name, PARAM, place.offsets, local)
        if is_managed(parameter):
            size = parameter.partition_numel()
            # The last rank's range ends before its partition does, by the padding.
            part = values.flatten()[size * torch.distributed.get_rank(parameter.ds_process_group) :][:size]
            parameter.ds_tensor.view(-1)[: part.numel()].copy_(part)
        else:
            parameter.copy_(values)


def _scaler(role: str, engine: Engine, world: World) -> Iterator[Shard]:
    """Yield DeepSpeed's dynamic loss scale (fp16), on rank 0."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if world.rank == 0 and scaler is not None and getattr(scaler, "dynamic", False):
        for kind in SCALER_KINDS:
            value = torch.tensor(float(getattr(scaler, kind)), dtype=torch.float64)
            yield Shard(role, replicated_state.SCALER, kind, (), (), value)


def _read_scaler(role: str, engine: Engine, reader: ShardReader) -> None:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is None or not reader.has(role, replicated_state.SCALER, SCALER_KINDS[0]):
        return
    for kind in SCALER_KINDS:
        value = float(reader.read(role, replicated_state.SCALER, kind))
        # The scale is a float, the counters are ints; a checkpoint holds all as float64.
        setattr(scaler, kind, value if kind == SCALER_KINDS[0] else int(value))


def parameter_bytes(engine: Engine) -> int:
    """Return the bytes of working parameters (ZeRO-3: this rank's partitions, and the small ones kept whole)
    and fp32 masters; shared memory counts once.
    """
    optimizer = engine.optimizer
    working = [t.data for p in engine.module.parameters() for t in (p, getattr(p, "ds_tensor", p))]
    return storage_bytes([*working, *_masters(optimizer)])


def gradient_bytes(engine: Engine) -> int:
    """Return the bytes of gradients after a window's last backward: whole ones (stage 1), or this rank's
    partitions.
    """
    return storage_bytes(_gradients(engine))


def optimizer_bytes(engine: Engine) -> int:
    """Return the bytes of the optimizer's moments of the masters."""
    states = engine.optimizer.optimizer.state.values()
    return storage_bytes(v for state in states for v in state.values() if isinstance(v, Tensor) and v.ndim)


def _masters(optimizer: FlatOptimizer | PartitionedOptimizer) -> list[Tensor]:
    # of stage 3, of stages 1 and 2, of ``BF16_Optimizer``
    names = "fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"
    return next((list(getattr(optimizer, name)) for name in names if hasattr(optimizer, name)), [])


def _gradients(engine: Engine) -> Iterator[Tensor]:
    optimizer = engine.optimizer
    yield from (p.grad for p in engine.module.parameters() if p.grad is not None)
    yield from (master.grad for master in _masters(optimizer) if master.grad is not None)
    if hasattr(optimizer, "grad_partitions_flat_buffer"):
        yield optimizer.grad_partitions_flat_buffer
    for kept in (getattr(optimizer, "averaged_gradients", None) or {}).values():
        yield from (g for g in kept or () if g is not None)
    yield from getattr(optimizer, "fp32_groups_gradients_flat", None) or ()  # BF16_Optimizer's sums
