"""The plan's mesh as torch's: one DeviceMesh over all ranks, and the part of it over which parameters are sharded."""

from __future__ import annotations

import datetime

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from paceline.plan.mesh import AXES, Mesh
from paceline.runtime.world import World

SHARD_AXIS = "dp_shard"
FLAT_AXIS = "dp_shard_cp"


def device_mesh(world: World, mesh: Mesh) -> DeviceMesh:
    """``mesh`` over all ranks of ``world``; axes of size 1 are left out, ``dp_shard`` is always there. Collective.

    Its groups get the world's timeout: torch would give them half an hour.
    """
    names = tuple(axis for axis in AXES if axis == SHARD_AXIS or getattr(mesh, axis) > 1)
    made = init_device_mesh(world.device.type, tuple(getattr(mesh, name) for name in names), mesh_dim_names=names)
    for group in made.get_all_groups() if world.backend != "fake" else ():
        _set_pg_timeout(datetime.timedelta(seconds=world.timeout_seconds), group)
    return made


def sharding_mesh(made: DeviceMesh) -> DeviceMesh:
    """What ``fully_shard`` takes: [shard], or [replicate, shard] (HSDP). The ranks of a cp group shard together, as each has a part of a sequence."""
    names = made.mesh_dim_names or ()
    shard = made[SHARD_AXIS, "cp"]._flatten(FLAT_AXIS) if "cp" in names else made[SHARD_AXIS]
    if "dp_replicate" not in names:
        return shard
    return DeviceMesh._concatenate([made["dp_replicate"], shard])
