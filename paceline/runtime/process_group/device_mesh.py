"""Build torch's DeviceMesh from the plan's mesh, and the part of it over which parameters are sharded."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from paceline.plan.mesh import AXES, Mesh
from paceline.runtime.process_group.world import World, group_timeout

SHARD_AXIS = "dp_shard"
FLAT_AXIS = "dp_shard_cp"


def device_mesh(world: World, mesh: Mesh) -> DeviceMesh:
    """Build ``mesh`` over all ranks, without axes of size 1 except ``dp_shard``. Collective.

    Its process groups get the world's timeout; torch's default is half an hour.
    """
    # Each axis makes a process group, with communicators that cost device memory.
    names = tuple(axis for axis in AXES if axis == SHARD_AXIS or getattr(mesh, axis) > 1)
    built = init_device_mesh(
        world.device.type, tuple(getattr(mesh, name) for name in names), mesh_dim_names=names
    )
    for group in built.get_all_groups() if world.backend != "fake" else ():
        _set_pg_timeout(group_timeout(world.timeout_seconds), group)
    for name, group in zip(names, built.get_all_groups(), strict=True) if len(names) > 1 else ():
        world.try_links(name, group)  # a single axis is the world, which was tried when it opened
    return built


def limit_groups(world: World, seconds: float) -> None:
    """Set the timeout of every process group of this process to ``seconds``. That includes groups that
    engines and ``DeviceMesh._flatten`` created with the backend's default (NCCL: ten minutes).
    """
    world.wait_for(seconds)
    if world.world_size == 1 or world.backend == "fake":
        return
    for group in list(_world.pg_map):
        _set_pg_timeout(group_timeout(seconds), group)


def sharding_mesh(built: DeviceMesh) -> DeviceMesh:
    """Return the mesh for ``fully_shard``: [shard], or [replicate, shard] (HSDP).

    The cp dimension is flattened into shard: ranks of a cp group hold parts of the same sequences and shard
    together.
    """
    names = built.mesh_dim_names or ()
    # A private name of torch 2.13; ``fully_shard`` takes one dimension to shard over.
    shard = built[SHARD_AXIS, "cp"]._flatten(FLAT_AXIS) if "cp" in names else built[SHARD_AXIS]
    if "dp_replicate" not in names:
        return shard
    return DeviceMesh._concatenate([built["dp_replicate"], shard])
