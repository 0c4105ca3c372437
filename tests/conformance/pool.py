"""Ranks of the real worker, forked from a process that has everything imported (``tests/warm.py``): one
starts in a fraction of a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import warm

from paceline.launch.network import free_port
from paceline.launch.process_spec import worker_argv
from paceline.launch.processes import MARK

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DROPPED = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "TORCHELASTIC_",
    "OMPI_",
    "SLURM_",
    "PMI_",
    "PYTEST_",
    "PACELINE_",
)


@dataclass(frozen=True)
class Ended:
    """Exit codes by rank, and everything the ranks printed."""

    codes: tuple[int | None, ...]
    output: str

    @property
    def ok(self) -> bool:
        return all(code == 0 for code in self.codes)


class Pool:
    """Starts ranks of ``paceline.training.worker``."""

    def __init__(self, own: Path, program: Path | None = None) -> None:
        """``own`` is a folder of a user's modules; ``program`` runs in the worker's place."""
        self._own, self._program = own, program

    def run(self, argv: Sequence[str], nproc: int, folder: Path, deadline: float = 240.0) -> Ended:
        """The worker on ``nproc`` ranks to its end; a rank that is still there at the deadline is killed
        and has no code.
        """
        folder.mkdir(parents=True, exist_ok=True)
        port, end = free_port(), time.monotonic() + deadline
        logs = [folder / f"rank-{rank}.txt" for rank in range(nproc)]
        ranks = []
        for rank, log in enumerate(logs):
            with log.open("wb") as out:
                command = self._command(argv)
                environ = rank_environment(rank, nproc, port, self._own)
                ranks.append(
                    warm.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                )
        codes = tuple(_code(rank, end) for rank in ranks)
        return Ended(codes, "\n".join(log.read_text(errors="replace") for log in logs))

    def _command(self, argv: Sequence[str]) -> Sequence[str]:
        return worker_argv(*argv) if self._program is None else (sys.executable, str(self._program), *argv)


def _code(rank: subprocess.Popen[bytes], end: float) -> int | None:
    try:
        return rank.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        rank.kill()
        rank.wait()
        return None


def rank_environment(rank: int, nproc: int, port: int, own: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
    ours = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": nproc,
        "LOCAL_WORLD_SIZE": nproc,
        "MASTER_PORT": port,
    }
    return {
        **clean,
        **{name: str(value) for name, value in ours.items()},
        "MASTER_ADDR": "127.0.0.1",
        MARK: "pool",  # each cell has been planned: its ranks need not look again
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), str(own)]),
    }
