"""One rank of a run: ``python -m paceline.training.rank --plan FILE | --config YAML [--set key=value …]``.

Until torch is imported: config → a look at all that a start needs, once a node, where no parent has looked → plan. Then ``training/worker.py``.
Exit codes: ``core.errors.ExitCode``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.private import written_for
from paceline.launch.environ import current
from paceline.launch.line import Line
from paceline.launch.managers import standing, whole
from paceline.launch.outlet import redacted
from paceline.runlog.redact import Redactor
from paceline.runlog.stacks import stacks_to
from paceline.runtime.leaving import leave
from paceline.runtime.rank_env import RankEnv
from paceline.training.said import tell
from paceline.training.start import looked_at, parse_start, plan_here, same_size

STDERR = 2  # where native crashes are told until the log of this rank is open
_LATER_SECONDS = 2.0  # how long the other ranks wait while the first one says what is wrong


@redacted
def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank. Returns the exit code; never raises for an error that has a name."""
    environ = current()
    stacks_to(STDERR)
    line = Line.join(environ, whole(environ.get("RANK", "0")), lambda word: leave(ExitCode.PEER_FAILED))
    code = run_rank(sys.argv[1:] if argv is None else argv, environ, line)
    line.ended(code)
    return code


def run_rank(argv: Sequence[str], environ: Mapping[str, str], line: Line) -> int:
    """The rank's life. What its launcher says it hears by ``line``."""
    first, on_node = place(environ)
    rank = on_node
    try:
        start = parse_start(argv, environ)
        rank = 0  # what is wrong with the variables may be wrong with this process alone
        env = RankEnv.from_environ(environ, start.local_rank)
        first, rank = env.rank == 0, env.local_rank  # each node looks at its own disks
        start = looked_at(start, env, environ)
        rank = env.rank
        plan = start.plan or plan_here(start, env, environ)
        same_size(plan, env)
        from paceline.training.worker import worker_of  # torch, Transformers

        worker = worker_of(start, env, plan, environ, line)
    except PacelineError as exc:
        if not first and not line.held:  # a launcher that is not ours ends all when one has ended
            time.sleep(_LATER_SECONDS)
        tell(exc.diagnostics, rank, only_first=True)
        line.failed(exc.exit_code, exc.diagnostics[0])
        return int(exc.exit_code)
    except OSError as exc:
        from paceline.training.failure import diagnose

        finding = Redactor.of(environ).diagnostic(diagnose(exc, rank))
        tell([finding], rank)
        line.failed(ExitCode.FAILED, finding)
        return int(ExitCode.FAILED)
    with written_for(Path(plan.run_dir), start.config.training.output_access):
        return worker.run()


def place(environ: Mapping[str, str]) -> tuple[bool, int]:
    """(whether this is rank 0, the place on its node), until the launcher's variables are checked: the YAML is read alike by all ranks of a node."""
    try:
        here = standing(environ)
    except ConfigError:
        return True, 0
    return here.rank == 0, here.rank % here.local_size


if __name__ == "__main__":
    sys.exit(main())
