"""Worker processes forked from one that has everything imported: a rank starts in a fraction of a second and runs the real worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        return not any(self.codes)


class Pool:
    """Starts ranks of ``paceline.training.worker``; ``close`` is a matter of this process ending."""

    def __init__(self, own: Path) -> None:
        """``own`` is a folder of a user's modules."""
        self._own = own
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["paceline.training.rank", "paceline.training.worker", "transformers.models.llama.modeling_llama"]
        )

    def run(self, argv: Sequence[str], nproc: int, folder: Path, deadline: float = 240.0) -> Ended:
        """The worker on ``nproc`` ranks to its end; a rank that is still there at the deadline is killed and has no code."""
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        logs = [folder / f"rank-{rank}.txt" for rank in range(nproc)]
        ranks = [
            self._context.Process(
                target=_rank, args=(list(argv), rank_environment(rank, nproc, port, self._own), str(logs[rank]))
            )
            for rank in range(nproc)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(deadline)
        codes = tuple(process.exitcode for process in ranks)
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
        return Ended(codes, "\n".join(log.read_text(errors="replace") for log in logs if log.exists()))


def rank_environment(rank: int, nproc: int, port: int, own: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, "MASTER_PORT": port}
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


def _rank(argv: list[str], environment: Mapping[str, str], log: str) -> None:
    """Runs in the forked process: its own environment and output, then the worker as if started by torchrun."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [p for p in environment["PYTHONPATH"].split(os.pathsep) if p not in sys.path]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from paceline.training.rank import main

    code = 1
    try:
        code = main(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
