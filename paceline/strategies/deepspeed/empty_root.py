"""The root module that an engine takes: without storage, and what gives it its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from paceline.core.json_types import JsonObject
from paceline.models.loading.materialize import build_on_meta
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule
from paceline.runtime.process_group.world import World
from paceline.strategies.deepspeed.autotp import prepare_root
from paceline.strategies.deepspeed.fill_partitions import (
    fill_partitions,
    fill_shards,
    fill_whole,
    without_storage,
)
from paceline.strategies.deepspeed.start_engine import engine_dtype, offload_devices

if TYPE_CHECKING:
    from paceline.plan.plan import Plan

Fill = Callable[[], None]


def built_root(
    build: ModelFactory, plan: Plan, world: World, config: JsonObject, stage: int, frozen: bool = False
) -> tuple[RootModule, Fill | None]:
    """Return the model without storage, and what fills it as the engine keeps it: in its low precision, and
    this rank's part of it. Collective, as is the call.

    The model is whole, and there is nothing to call, at stage 0, for a base packed in 4 bits, and where
    AutoTP meets parameters on a drive, which DeepSpeed partitions first.
    """
    mesh, low = plan.mesh, plan.precision.compute in ("bfloat16", "float16")
    options = BuildOptions(fused=stage < 3 and mesh.tp == 1, engine_casts=low and stage > 0)
    packed = plan.adapter is not None and plan.adapter.quantization is not None
    drive = mesh.tp > 1 and offload_devices(config)["offload_param"] == "nvme"
    if not stage or packed or drive:
        root = build(options).to(world.device)
        fill = None
    else:
        root, source = build_on_meta(build, replace(options, device=torch.device("cpu")), world)
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
