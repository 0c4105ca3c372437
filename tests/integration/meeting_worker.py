"""A rank that meets others: one of them says that it is something else, or stays away."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.runtime import first_reduce, peers, world
from paceline.runtime.leaving import leave
from paceline.runtime.rank_env import RankEnv

scenario, out = sys.argv[1], Path(sys.argv[2])
env = RankEnv.from_environ(world.environment())
if env.rank == 1 and scenario == "differs":
    facts = peers.own_facts
    world.own_facts = lambda device: {**facts(device), "torch": "1.0"}  # type: ignore[attr-defined]
if scenario == "absent":
    first_reduce.first_reduce.__defaults__ = (3.0,)  # type: ignore[misc]
    if env.rank == 1:
        world.World.try_links = lambda *_: time.sleep(600)  # type: ignore[assignment,method-assign]
try:
    made = world.World.open(env, device="cpu", timeout_seconds=1800.0)
except PacelineError as error:
    (out / f"{env.rank}.json").write_text(json.dumps([d.to_json() for d in error.diagnostics]))
    leave(3)
(out / f"{env.rank}.json").write_text(json.dumps({"links": made.links}))
made.close(ok=True)
leave(0)
