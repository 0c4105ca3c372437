"""Start N ranks of a script and wait for them, with a deadline; nothing outlives the call."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import warm

ROOT = Path(__file__).resolve().parents[2]
HANGS = 300.0  # seconds after which ranks hang, on a busy machine too
STRATEGIES = Path(__file__).with_name("strategy_worker.py")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def base_environment() -> dict[str, str]:
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(
            ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "SLURM_", "PMI_")
        )
    }
    return {
        **clean,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *(str(ROOT / "tests" / "unit" / room) for room in ("strategies", "models"))]
        ),
        "OMP_NUM_THREADS": "1",
    }


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        **base_environment(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def run_ranks(
    scenario: str, world_size: int, out: Path, deadline: float = HANGS, script: Path = STRATEGIES
) -> tuple[list[int], list[str]]:
    """Exit codes and output of each rank of a scenario. Fails when a rank is still there at the deadline."""
    out.mkdir(parents=True, exist_ok=True)
    port = free_port()
    argv = [sys.executable, str(script), scenario, str(out)]
    started = [start(argv, rank_environment(rank, world_size, port)) for rank in range(world_size)]
    return collect(started, deadline)


def start(argv: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return warm.Popen(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def collect(processes: Sequence[subprocess.Popen[str]], deadline: float) -> tuple[list[int], list[str]]:
    end, outputs = time.monotonic() + deadline, []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
    finally:
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return [process.returncode for process in processes], outputs
