"""One rank that sums numbers with the others until OUT/stop is there: ``python silence_worker.py OUT TIMEOUT
LEAST_LIMIT QUIET``; what it hears goes to ``OUT/<rank>.heard.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode
from paceline.launch.run_secret import read_secret
from paceline.runtime.failures import alarm as alarms
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.failures.heartbeat import Heartbeat, Signs
from paceline.runtime.failures.root_cause import is_cascade, is_timeout
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.runtime.time_limit import exit_now

out, timeout, least, quiet = Path(sys.argv[1]), *map(float, sys.argv[2:])
alarms.LEAST_LIMIT_SECONDS = least
begun: list[Alarm] = []


def heard(rank: int, diagnostic: Diagnostic, code: int) -> None:
    path = out / f"{env.rank}.heard.json"
    path.write_text(json.dumps({"rank": rank, "code": code, "diagnostic": diagnostic.to_json()}))


def warned(diagnostic: Diagnostic, loud: bool) -> None:
    with (out / f"{env.rank}.warned.jsonl").open("a") as file:
        file.write(json.dumps({"loud": loud, **diagnostic.to_json()}) + "\n")


def watch(world: World) -> None:
    sign = Signs(lambda rank: out / f"{rank}.heartbeat")
    alarm = Alarm(
        world, heard, on_warning=warned, sign=sign, doing=lambda: (steps, "sum"), quiet_seconds=quiet
    )
    begun.append(alarm.start())


env, steps = RankEnv.from_environ(environment()), 0
heart = Heartbeat(out / f"{env.rank}.heartbeat", 0.5).start()
world = World.open(env, device="cpu", timeout_seconds=timeout, secret=read_secret(environment()), met=watch)
(alarm,) = begun
(out / f"{env.rank}.up").write_text("")
try:
    while not world.any((out / "stop").exists()):
        steps += 1
        time.sleep(0.05)
except RuntimeError as exc:
    if is_cascade(exc):
        alarm.await_root_cause(3.0, timed_out=is_timeout(exc))
    finding = Diagnostic("test.own", str(exc), evidence={"silent": alarm.silent_ranks})
    (out / f"{env.rank}.own.json").write_text(json.dumps(finding.to_json()))
    alarm.raise_error(finding, ExitCode.FAILED)
    exit_now(ExitCode.FAILED)
alarm.stop()
heart.stop()
sys.exit(0 if world.close(ok=True) else ExitCode.CLOSING)
