"""``python -m paceline.runtime.process_group.link_probe JOB ANSWER``: one rank of a trial before the run.

It opens the world as a training does, which ends with a timed all-reduce of all ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program
from paceline.launch.run_secret import read_secret
from paceline.runtime.process_group.world import RankEnv, World
from paceline.runtime.time_limit import exit_now


@program
def main(job: str, answer: str) -> int:
    """Write lines about the links, and findings, to ``answer``."""
    request = json.loads(Path(job).read_text(encoding="utf-8"))
    environ = current()
    env, world = RankEnv.from_environ(environ), None
    findings: list[Diagnostic] = []
    try:
        world = World.open(
            env, device=request["device"], timeout_seconds=request["seconds"], secret=read_secret(environ)
        )
        findings += world.notes if env.rank == 0 else []  # every rank has them
    except PacelineError as error:
        findings += error.diagnostics
    reply = {
        "lines": world.links if world is not None else [],
        "findings": [finding.to_json() for finding in findings],
    }
    Path(answer).write_text(json.dumps(reply), encoding="utf-8")
    if world is None or not world.close(ok=True):
        exit_now(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
