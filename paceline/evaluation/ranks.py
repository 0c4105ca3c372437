"""The processes of an evaluation: this one alone, or several that need not meet."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from paceline.core.errors import ExitCode, PacelineError
from paceline.evaluation import codes
from paceline.evaluation.rank import Report, compute
from paceline.evaluation.work import COPIES, WorkFolder
from paceline.launch.environ import current
from paceline.launch.exits import signal_name
from paceline.launch.ports import free_port
from paceline.launch.processes import die_with_parent
from paceline.launch.secret import handed_out
from paceline.launch.spec import import_path, module_argv, thread_count

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0


def number_of_ranks(requested: int | None, batches: int | None = None) -> int:
    """Return how many processes compute so many batches (None: all share one model): as requested, else one a
    GPU, or one on a CPU.
    """
    here = torch.accelerator.device_count() if torch.accelerator.is_available() else 1
    return max(1, requested or here if batches is None else min(requested or here, batches))


def compute_on_ranks(work: WorkFolder, world_size: int, report: Report) -> None:
    """Compute all work in ``world_size`` processes. Raises PacelineError if one of them fails."""
    if world_size == 1:
        compute(work, 0, 1, report)
        return
    here = current()
    environ = {**here, **import_path(here), **thread_count(here, os.cpu_count() or 1, world_size)}
    meets = work.settings().strategy != COPIES
    port = free_port() if meets else 0
    with handed_out(here, 1, world_size if meets else 1) as secret:
        ranks = [
            subprocess.Popen(
                module_argv("paceline.evaluation.rank", str(work.folder), str(rank), str(world_size)),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                env={**environ, **secret, **(_meeting(rank, world_size, port) if meets else {})},
                preexec_fn=die_with_parent(),
            )
            for rank in range(world_size)
        ]
        try:
            failed = _first_failure(ranks)
        finally:
            _end(ranks)
    if failed is None:
        return
    code = ranks[failed].returncode
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    what = f"process {failed} of {world_size} {how}"
    error = PacelineError(codes.EVALUATION_RANK(what, f"rank {failed}", hint="see its message above"))
    if code == ExitCode.CONFIG:
        error.exit_code = ExitCode.CONFIG
    raise error


def _meeting(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables by which processes that share a model meet."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    named = {name: str(value) for name, value in (numbers | {"MASTER_PORT": port}).items()}
    return {**named, "MASTER_ADDR": "127.0.0.1"}


def _first_failure(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks, or for the first that fails; return its number. The others are still running."""
    while True:
        codes_now = [rank.poll() for rank in ranks]
        failed = next((number for number, code in enumerate(codes_now) if code), None)
        if failed is not None or None not in codes_now:
            return failed
        time.sleep(_POLL_SECONDS)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
