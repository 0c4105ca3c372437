"""One rank of a run: ``python -m paceline.training.rank --plan FILE | --config YAML [--set key=value …]``.

Before torch is imported: load the config; check all that a start needs, once per node, unless a parent
process did; plan. Then ``training/worker.py``. Exit codes: ``core.errors.ExitCode``.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.core.diagnostics import all_codes, print_diagnostics
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch.environment.device_variables import QUIET_TORCH, device_settings
from paceline.launch.environment.guide_variables import current, set_defaults
from paceline.launch.environment.job_managers import parse_nonnegative_int, process_rank
from paceline.launch.program import redacted, tolerate_loss
from paceline.launch.run_secret import read_secret
from paceline.launch.supervision.worker_channel import LauncherConnection
from paceline.runlog.lines import is_verbose
from paceline.runlog.redact import Redactor
from paceline.runlog.stacks import stacks_to
from paceline.runtime import codes
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import exit_now
from paceline.training.rank_arguments import looked_at, parse_start, plan_here, same_size

STDERR = 2  # where native crashes are reported until this rank's log is open
LATER_SECONDS = 2.0  # how long other ranks wait while the first one reports the error


@redacted
def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank. Return the exit code; never raises a named error."""
    environ = current()
    if not is_verbose(environ):
        set_defaults(QUIET_TORCH)
    tolerate_loss()
    stacks_to(STDERR)
    all_codes()  # read now: a rank that is out of file descriptors could not open them later
    line = LauncherConnection.join(
        environ, parse_nonnegative_int(environ.get("RANK", "0")), lambda word: exit_now(ExitCode.PEER_FAILED)
    )
    code = run_rank(sys.argv[1:] if argv is None else argv, environ, line)
    line.ended(code)
    return code


def run_rank(argv: Sequence[str], environ: Mapping[str, str], line: LauncherConnection) -> int:
    """Start and run the worker of this rank. ``line`` is the connection to its launcher."""
    first, on_node = place(environ)
    rank, env, before_data = on_node, RankEnv(), True
    try:
        if sys.flags.optimize > 1:  # Transformers reads docstrings, which -OO removes
            raise ConfigError(codes.RUNTIME_DOCSTRINGS("PYTHONOPTIMIZE", str(sys.flags.optimize)))
        start = parse_start(argv, environ)
        rank = 0  # bad variables may concern this process alone, so report them
        env = RankEnv.from_environ(environ, start.local_rank)
        first, rank = env.rank == 0, env.local_rank  # each node checks its own disks
        start = looked_at(start, env, environ)
        rank = env.rank
        plan = start.plan or plan_here(start, env, environ)
        same_size(plan, env)
        settings = device_settings(
            environ,
            plan.device,
            env.world_size,
            RunDir.at(plan.run_dir),
            deterministic=start.config.training.full_determinism,
        )
        set_defaults({name: value for name, (value, _) in settings.items()})
        from paceline.training.worker import prepare_run, run_worker  # torch, Transformers

        before_data = False  # from here on the worker itself reports to the other nodes
        try:
            run = prepare_run(start, env, plan, environ, line)
        except (PacelineError, OSError):
            raise
        except (Exception, SystemExit) as exc:  # a converter or a reader of data may raise anything
            return _failed(exc, rank, environ, line)
    except PacelineError as exc:
        if not first and not line.held:  # a foreign launcher kills all ranks once one has ended
            time.sleep(LATER_SECONDS)
        print_diagnostics(exc.diagnostics, rank, only_first=True)
        if before_data:
            _report_to_other_nodes(env, environ, exc)
        line.failed(exc.exit_code, exc.diagnostics[0])
        return int(exc.exit_code)
    except OSError as exc:
        return _failed(exc, rank, environ, line)
    with written_for(Path(plan.run_dir), start.config.training.output_access):
        return run_worker(run, settings)


def _report_to_other_nodes(env: RankEnv, environ: Mapping[str, str], error: PacelineError) -> None:
    """Report this node's failure to the other nodes, whose launchers do not see it."""
    if env.num_nodes == 1:
        return
    from paceline.runtime.process_group.rendezvous import refuse  # torch

    try:
        secret = read_secret(environ)
    except ConfigError:
        secret = b""
    refuse(env, secret, error)


def _failed(error: BaseException, rank: int, environ: Mapping[str, str], line: LauncherConnection) -> int:
    """Report an error without a diagnostic; return the exit code."""
    from paceline.training.errors import diagnose

    finding = Redactor.of(environ).diagnostic(diagnose(error, rank))
    if not isinstance(error, OSError):
        print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    print_diagnostics([finding], rank)
    line.failed(ExitCode.FAILED, finding)
    return int(ExitCode.FAILED)


def place(environ: Mapping[str, str]) -> tuple[bool, int]:
    """Return (whether this is rank 0, local rank) before the launcher's variables are checked.

    All ranks of a node read the same YAML.
    """
    try:
        here = process_rank(environ)
    except ConfigError:
        return True, 0
    return here.rank == 0, here.rank % here.local_size


if __name__ == "__main__":
    sys.exit(main())
