"""Start the processes of an evaluation: this one alone, or several without a process group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from paceline.core.errors import ExitCode, PacelineError
from paceline.evaluation import codes
from paceline.evaluation.processes.rank import Report, compute
from paceline.evaluation.processes.sharded_model import check_shareable
from paceline.evaluation.processes.work_folder import COPIES, WorkFolder
from paceline.launch.environment.guide_variables import current
from paceline.launch.network import free_port
from paceline.launch.process_spec import ENTERED, import_path, module_argv, thread_count
from paceline.launch.processes import die_with_parent
from paceline.launch.run_secret import secret_environment
from paceline.launch.supervision.exit_codes import signal_name

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0
_LEAVE_SECONDS = 2.0


def number_of_ranks(requested: int | None, batches: int | None = None) -> int:
    """Return the number of processes for ``batches`` batches (None: all share one model): as requested, else
    one a GPU, or one on a CPU.
    """
    here = torch.accelerator.device_count() if torch.accelerator.is_available() else 1
    return max(1, requested or here if batches is None else min(requested or here, batches))


def compute_on_ranks(work: WorkFolder, world_size: int, report: Report) -> None:
    """Compute all work in ``world_size`` processes. Raises PacelineError if one of them fails."""
    if world_size == 1:
        compute(work, 0, 1, report)
        return
    settings = work.settings()
    if meets := settings.strategy != COPIES:
        vision = settings.images is not None
        check_shareable(Path(settings.model), settings.strategy, world_size, vision=vision)
    failed = run_ranks("paceline.evaluation.processes.rank", [str(work.folder)], world_size, meets=meets)
    if failed is not None:
        raise failure(*failed, world_size)


def run_ranks(
    module: str, arguments: list[str], world_size: int, *, meets: bool, talks: bool = False
) -> tuple[int, int] | None:
    """Run a module in each process, with rank and world size behind its arguments. Return (rank, exit code)
    of the first process that fails, None if none fails. ``meets``: they share a model; ``talks``: only the
    first one gets the terminal, the user's input and Ctrl-C.
    """
    here = current()
    environ = {**here, **import_path(here), **thread_count(here, os.cpu_count() or 1, world_size)}
    entered = [ENTERED] if talks else []  # the first one's, which Ctrl-C may meet while it imports
    port = free_port() if meets else 0
    with secret_environment(here, 1, world_size if meets else 1) as secret:
        ranks = [
            subprocess.Popen(
                module_argv(*entered[rank:], module, *arguments, str(rank), str(world_size)),
                stdin=None if talks and rank == 0 else subprocess.DEVNULL,
                # Standard output is the answer's alone
                stdout=None if talks and rank == 0 else sys.stderr,
                process_group=0 if talks and rank > 0 else None,  # Ctrl-C is for the first one
                env={**environ, **secret, **(meeting_environment(rank, world_size, port) if meets else {})},
                preexec_fn=die_with_parent(),
            )
            for rank in range(world_size)
        ]
        try:
            failed = _first_failure(ranks)
        except KeyboardInterrupt:
            if talks:  # the first one has received it, too, and ends by itself
                with suppress(subprocess.TimeoutExpired):
                    ranks[0].wait(_LEAVE_SECONDS)
            raise
        finally:
            _end(ranks)
    return None if failed is None else (failed, ranks[failed].returncode)


def failure(failed: int, code: int, world_size: int) -> PacelineError:
    """Return the error for the process that failed, with how it ended."""
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    if code == ExitCode.PEER_FAILED:
        how = "lost its connection to another one"
    message, remedy = f"process {failed} of {world_size} {how}", "see its message above"
    if code < 0:
        remedy = "it left no message: `dmesg` shows whether memory ran out; if not, find what sent the signal"
    elif code == ExitCode.PEER_FAILED:
        remedy = "start again; if no process has a message above, look for the network's fault"
    error = PacelineError(codes.EVALUATION_RANK(message, f"rank {failed}", hint=remedy))
    if code == ExitCode.CONFIG:
        error.exit_code = ExitCode.CONFIG
    return error


def meeting_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables by which processes that share a model meet."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    variables = {name: str(value) for name, value in (numbers | {"MASTER_PORT": port}).items()}
    # c10d's warnings about a closed connection are pages; who ended is said here
    return {**variables, "MASTER_ADDR": "127.0.0.1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def _first_failure(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks. If one fails while others still run, return its number at once.

    A rank that lost another one (PEER_FAILED) does not count: that other one is about to end, too.
    """
    deadline = None
    while True:
        codes_now = [rank.poll() for rank in ranks]
        failed = [number for number, code in enumerate(codes_now) if code]
        causes = [number for number in failed if codes_now[number] != ExitCode.PEER_FAILED]
        if failed and deadline is None:
            deadline = time.monotonic() + _GRACE_SECONDS
        if causes or None not in codes_now or (deadline is not None and time.monotonic() > deadline):
            return next(iter((*causes, *failed)), None)
        time.sleep(_POLL_SECONDS)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            # They close their files; who does not end in time is killed
            rank.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
