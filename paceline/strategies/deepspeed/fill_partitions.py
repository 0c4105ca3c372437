"""The root module that DeepSpeed's engine takes. It is built without storage, then gets its values in the
dtype in which the engine trains. Each rank reads its own part from the model's files.

DeepSpeed partitions a parameter that every rank holds whole, after a broadcast from rank 0. Under ZeRO-3 it
gets one here whose memory is reserved, but written only where this rank's partition lies. Pages that are
never written take no room, and no rank reads another's part. AutoTP cuts values that have no storage yet; its
shards are filled before the engine goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.json_types import JsonObject
from paceline.models.loading.materialize import Read, build_on_meta, fill
from paceline.models.module_tensors import replace_tensors
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.runtime.process_group.world import World
from paceline.strategies.deepspeed.autotp import prepare_root
from paceline.strategies.deepspeed.partition_views import ParameterSlice, is_managed
from paceline.strategies.deepspeed.start_engine import (
    engine_dtype,
    offload_devices,
    opened,
    refusals,
    sequence_groups,
)

if TYPE_CHECKING:
    from paceline.plan.plan import Plan
    from paceline.protocols.model import RootModule
    from paceline.strategies.deepspeed.engine_types import Partitioner


def without_storage(root: RootModule, device: torch.device, low: torch.dtype | None) -> None:
    """Give the parameters of ``root``, which are on meta, one value each on ``device``, expanded to their
    shapes. They have the dtype in which the engine trains (``low``: its 16-bit one).

    They stay the same objects when they are filled, with shapes by which an optimizer groups them.
    """
    new: dict[int, Tensor] = {}
    for parameter in root.parameters():
        dtype = low if low is not None and parameter.is_floating_point() else parameter.dtype
        # One number behind the whole shape (strides 0). NaN, so that a parameter which nobody fills is seen
        # in the first loss.
        values = torch.full((), math.nan, dtype=dtype, device=device).expand(parameter.shape)
        new[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    replace_tensors(root, new)


def fill_partitions(
    root: RootModule,
    source: RootModule | None,
    world: World,
    config: JsonObject,
    sequence_parallel: int = 1,
) -> None:
    """Partition the parameters of ``root`` over the ranks and give each rank's their values
    (``materialise.fill``). Collective.

    Raises ConfigError as ``start_engine`` does.
    """
    deepspeed = opened(world, config)
    with refusals():
        # Before ``initialize``, which then takes partitioned parameters as they are.
        partitioner = _partitioner(deepspeed, config, sequence_parallel)

    def place(target: Tensor, read: Read, device: torch.device) -> Tensor:
        if not isinstance(target, nn.Parameter):
            return _whole(target, read, device)
        _partition(partitioner, target, read)
        return target

    fill(root, source, world, world.device, place)
    partitioner._keep_in_fp32(root)


def fill_whole(root: RootModule, source: RootModule | None, world: World) -> None:
    """Give every parameter of ``root`` all its values. Collective."""

    def place(target: Tensor, read: Read, device: torch.device) -> Tensor:
        values = _whole(target, read, device)
        if not isinstance(target, nn.Parameter):
            return values
        target.data = values
        return target

    fill(root, source, world, world.device, place)


def fill_shards(root: RootModule, source: RootModule | None, world: World, tp_rank: int) -> None:
    """Give the parameters of ``root``, which AutoTP has cut, their values; this is rank ``tp_rank`` of its
    group. Collective.
    """
    names = {id(parameter): name for name, parameter in root.named_parameters()}

    def place(target: Tensor, read: Read, device: torch.device) -> Tensor:
        if not isinstance(target, nn.Parameter):
            return _whole(target, read, device)
        # Read where AutoTP has cut: only this rank's rows or columns come from the disk.
        values = read(ParameterSlice.of(names[id(target)], target, tp_rank).offsets, target.shape)
        target.data = values.to(device=device, dtype=target.dtype, copy=True).contiguous()
        return target

    fill(root, source, world, world.device, place)


def _whole(target: Tensor, read: Read, device: torch.device) -> Tensor:
    return read((0,) * target.ndim, target.shape).to(device=device, dtype=target.dtype, copy=True)


def _partitioner(deepspeed: ModuleType, config: JsonObject, sequence_parallel: int) -> Partitioner:
    """Return DeepSpeed's ``zero.Init`` as its engine would make it for a model without parameters: a second
    model has the first's groups of hierarchical partitioning.
    """
    from deepspeed.utils import groups

    partitioner: Partitioner = deepspeed.zero.Init(
        module=nn.Module(),
        config_dict_or_path=copy.deepcopy(config),
        mpu=sequence_groups(sequence_parallel),
        zero_param_parallel_group=groups._get_zero_param_intra_parallel_group(),
    )
    return partitioner


def _on_host(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return host memory for one whole parameter, so that the card holds only its partitions."""
    return torch.empty(shape, dtype=dtype)


@torch.no_grad()
def _partition(partitioner: Partitioner, parameter: nn.Parameter, read: Read) -> None:
    """Make ``parameter`` one of ZeRO-3 that has this rank's partition."""
    shape = parameter.shape
    parameter.data = _on_host(shape, parameter.dtype)
    partitioner._convert_to_deepspeed_param(parameter)
    assert is_managed(parameter)
    flat = parameter.data.view(-1)
    for start, count in element_ranges(partitioner, parameter.ds_numel):
        flat[start : start + count] = flat_block(read, shape, start, count)
    # The view would keep the whole parameter alive while DeepSpeed frees it.
    del flat
    parameter.partition()
    parameter.data = parameter.data.to(partitioner.local_device)


def element_ranges(partitioner: Partitioner, numel: int) -> Iterator[tuple[int, int]]:
    """Yield (start, count) of what this rank keeps of a flattened parameter: its partition, and with ZeRO++'s
    hierarchical partitioning that within its group.
    """
    parts = {
        (partitioner.rank, partitioner.dp_world_size),
        (partitioner.rank_in_group, partitioner.num_ranks_in_param_group),
    }
    # DeepSpeed pads the flattened parameter to a multiple of the ranks, and cuts it evenly.
    padded = -(-numel // partitioner.dp_world_size) * partitioner.dp_world_size
    for rank, ranks in sorted(parts):
        size = padded // ranks
        if count := max(0, min(size, numel - size * rank)):
            yield size * rank, count


def flat_block(read: Read, shape: Sequence[int], start: int, count: int) -> Tensor:
    """Return ``count`` elements from ``start`` of the flattened tensor, from the rows that hold them."""
    if not shape:
        return read((), ()).reshape(-1)
    width = math.prod(shape[1:])
    # A range may begin and end inside a row, but files are read by whole rows.
    first, end = start // width, -(-(start + count) // width)
    rows = read((first, *(0,) * (len(shape) - 1)), (end - first, *shape[1:]))
    return rows.reshape(-1)[start - first * width :][:count]


Fill = Callable[[], None]


def built_root(
    build: ModelFactory, plan: Plan, world: World, config: JsonObject, stage: int, frozen: bool = False
) -> tuple[RootModule, Fill | None]:
    """Return the model without storage, and the function that gives it this rank's values in the engine's
    dtype. Both calls are collective.

    In three cases the model is returned whole, without a function: at stage 0, for a base packed in 4 bits,
    and under AutoTP with parameters on a drive, which DeepSpeed partitions first.
    """
    mesh, low = plan.mesh, plan.precision.compute in ("bfloat16", "float16")
    options = BuildOptions(
        fused=stage < 3 and mesh.tp == 1, engine_casts=low and stage > 0, in_step=stage > 1
    )
    # bitsandbytes packs a weight when it is moved to the device: it needs values then.
    packed = plan.adapter is not None and plan.adapter.quantization is not None
    drive = mesh.tp > 1 and offload_devices(config)["offload_param"] == "nvme"
    if not stage or packed or drive:
        root = build(options).to(world.device)
        fill = None
    else:
        root, source = build_on_meta(build, replace(options, device=torch.device("cpu")), world)
        # Before the optimizer is built: its groups hold these parameter objects.
        without_storage(root, world.device, engine_dtype(config))
        if mesh.tp > 1:
            fill = partial(fill_shards, root, source, world, mesh.coordinates(world.rank).tp)
        elif stage == 3:
            fill = partial(fill_partitions, root, source, world, config, mesh.cp)
        else:
            fill = partial(fill_whole, root, source, world)
    if frozen:
        root.requires_grad_(False)
    if mesh.tp > 1:
        prepare_root(root, stage)
    return root, fill
