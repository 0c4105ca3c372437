"""A rank that waits as under NCCL: in nothing that a dead peer would break; its alarm alone can end it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.distributed.distributed_c10d import _world

from paceline.plan.mesh import Mesh
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.process_group.device_mesh import device_mesh, limit_groups, sharding_mesh
from paceline.runtime.process_group.world import World, environment
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import exit_now

scenario, out = sys.argv[1], Path(sys.argv[2])
env = RankEnv.from_environ(environment())


def heard(rank: int, diagnostic: object, code: int) -> None:
    (out / f"{env.rank}.heard.json").write_text(json.dumps([rank, diagnostic.code, code]))  # type: ignore[attr-defined]


if scenario == "groups":
    made = World.open(env, device="cpu", timeout_seconds=77.0)
    mesh = device_mesh(made, Mesh(dp_replicate=1, dp_shard=1, cp=2, tp=1, pp=1))
    sharding_mesh(mesh)
    torch.distributed.new_group([0, 1])
    limit_groups(made, 72.0)
    limits = [str(g._get_backend(torch.device("cpu")).options._timeout) for g in _world.pg_map]
    (out / f"{env.rank}.json").write_text(json.dumps([limits, made.links]))
    made.close(ok=True)
    exit_now(0)
alarms: list[Alarm] = []
made = World.open(
    env,
    device="cpu",
    timeout_seconds=1800.0,
    met=lambda world: alarms.append(Alarm(world, heard).start()),
)
(out / f"{env.rank}.ready").touch()
time.sleep(600)
