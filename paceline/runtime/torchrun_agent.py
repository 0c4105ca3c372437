"""torchrun's agent, except that it returns the workers' exit code and prints one line instead of the error
box.

``python -m paceline.runtime.torchrun_agent <torchrun's flags> -m module args…`` or ``… script.py args…``:
started by ``launch.launchers`` as a separate process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from paceline.core.errors import ExitCode
from paceline.launch.environment.guide_variables import current
from paceline.launch.processes import STOPPED, rank_children, send, state_of
from paceline.launch.program import redacted
from paceline.launch.supervision.exit_codes import CALM, killed_diagnostic, overall_code
from paceline.launch.supervision.supervisor import STOPPED_SECONDS
from paceline.launch.supervision.worker_channel import AGENT, LauncherConnection

SHUTDOWN_SECONDS = 60  # torch's 30 s are too short for ranks still publishing a checkpoint


@redacted
def main(argv: Sequence[str]) -> int:
    """Start this node's workers, wait for them, and return their exit code."""
    # its error box and log repeat what the ranks have said themselves
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.run").setLevel(logging.ERROR)
    config, command, args = config_from_args(parse_args(list(argv)))  # type: ignore[no-untyped-call]
    threading.Thread(
        target=_end_stopped, args=(config.nproc_per_node,), name="paceline-stopped", daemon=True
    ).start()
    config.shutdown_timeout = max(config.shutdown_timeout or 0, SHUTDOWN_SECONDS)
    line = LauncherConnection.join(
        current(), AGENT, lambda word: None
    )  # the workers have their own connections
    try:
        elastic_launch(config, command)(*args)
    except ChildFailedError as exc:
        codes = {rank: failure.exitcode for rank, failure in exc.failures.items()}
        line.codes(codes)
        return _report(codes)
    except SignalException as exc:
        return 128 + int(exc.sigval)
    return int(ExitCode.OK)


def _end_stopped(processes: int) -> None:
    """After a worker has exited, kill those that are stopped (SIGSTOP).

    They do not react to SIGTERM, and the agent would wait for its full timeout.
    """
    while True:
        time.sleep(STOPPED_SECONDS)
        workers = rank_children(os.getpid())  # an exited worker has no environment
        if len(workers) < processes:
            for pid in workers:
                if state_of(pid) in STOPPED:
                    send(pid, signal.SIGKILL)


def _report(codes: dict[int, int]) -> int:
    """Print a line for each rank that could not report its error itself; return the combined exit code."""
    for rank, code in sorted(codes.items()):
        if code < 0:
            print(killed_diagnostic(rank, code).render(), file=sys.stderr, flush=True)
        elif code not in CALM:
            print(f"rank {rank} ended with exit code {code}", file=sys.stderr, flush=True)
    code = overall_code(codes)
    return int(ExitCode.FAILED) if code == ExitCode.PEER_FAILED else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
