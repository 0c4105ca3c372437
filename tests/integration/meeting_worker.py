"""A rank that meets others: one of them is something else, is refused, comes late or stays away."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from paceline.core.errors import PacelineError
from paceline.runtime import codes
from paceline.runtime.process_group import first_all_reduce, rank_agreement, rendezvous, world
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import exit_now

scenario, out = sys.argv[1], Path(sys.argv[2])
env = RankEnv.from_environ(world.environment())
if env.rank == 1 and scenario == "differs":
    facts = rank_agreement.own_facts
    world.own_facts = lambda device: {**facts(device), "torch": "1.0"}  # type: ignore[attr-defined]
if scenario == "absent":
    first_all_reduce.first_reduce.__defaults__ = (3.0,)  # type: ignore[misc]
    if env.rank == 1:
        world.World.try_links = lambda *_: time.sleep(600)  # type: ignore[assignment,method-assign]
me, secret = f"rank {env.rank}", b""
if scenario.startswith("refused"):  # with which secrets, by rank

    def refused(*_: object, **__: object) -> None:
        raise PacelineError(codes.RUNTIME_DEVICE("this device is broken", found=me))

    _, whose, *secrets = scenario.split()
    secret = secrets[env.rank].encode() if secrets else b""
    if env.rank == int(whose):
        world.pick_device = refused  # type: ignore[attr-defined]
if scenario.startswith("late"):
    for call in (rendezvous.connect_store, rendezvous.arrive):
        assert call.__kwdefaults__ is not None
        call.__kwdefaults__["report_seconds"] = 0.2
    if env.rank == int(scenario.split()[1]):
        while not (out / "said").exists():  # until the other one has said for whom it waits
            time.sleep(0.05)
try:
    made = world.World.open(env, device="cpu", timeout_seconds=1800.0, secret=secret)
except PacelineError as error:
    (out / f"{env.rank}.json").write_text(json.dumps([d.to_json() for d in error.diagnostics]))
    exit_now(3)
(out / f"{env.rank}.json").write_text(json.dumps({"links": made.links}))
made.close(ok=True)
exit_now(0)
