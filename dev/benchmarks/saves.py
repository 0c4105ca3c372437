"""Saves beside training, and the speed of saves and loads against torch's distributed checkpoint (DCP).

    OMP_NUM_THREADS=1 python dev/benchmarks/saves.py [--nproc 1] [--mib 256] [--rounds 5] [--folder /tmp]

Each rank holds ``--mib`` MiB of fp32 in 64 tensors. Three parts, all with the files synced to the disk:

    blocked   a loop of matrix products (``--seconds`` of them between two saves) makes ten saves, synchronous
              ones and then ones beside it: how long it waits, median of saves 2 to 10, its time
    save      Checkpointer.save (every byte hashed) and DCP's save, in turn: bytes of all ranks a second
    load      CheckpointReader with verification and DCP's load, in turn, into tensors that exist

Ratios are those of medians. The load average is printed first: on a busy machine the numbers say little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from paceline.checkpoint.checkpointer import AsyncCheckpointer, Checkpointer
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.protocols.shard import Shard
from paceline.runtime.process_group.background_exchange import StoreRanks
from paceline.runtime.process_group.world import RankEnv, World

TENSORS = 64
SAVES = 10


def state_of(rank: int, mib: int) -> dict[str, torch.Tensor]:
    rows = mib * 1024 * 1024 // 4 // TENSORS // 1024
    generator = torch.Generator().manual_seed(rank)
    return {f"w{rank}.{i}": torch.randn(rows, 1024, generator=generator) for i in range(TENSORS)}


def shards_of(state: dict[str, torch.Tensor]) -> list[Shard]:
    return [Shard("policy", name, "param", tuple(t.shape), (0, 0), t) for name, t in state.items()]


def together(world: World, work: Callable[[], object]) -> float:
    """Wall seconds until all ranks have done ``work``."""
    world.barrier()
    began = time.perf_counter()
    work()
    world.barrier()
    return time.perf_counter() - began


def computed(seconds: float) -> None:
    """Products for ``seconds`` of this thread's own CPU time: a step has its work, whatever the load."""
    matrix, end = torch.ones(256, 256), time.thread_time() + seconds
    while time.thread_time() < end:
        torch.mm(matrix, matrix)


def waits(
    world: World, folder: Path, state: dict[str, torch.Tensor], seconds: float, beside: bool
) -> list[float]:
    """Return how long the loop waited for each save, then its wall time."""
    ranks = StoreRanks.open(world) if beside else world
    checkpointer = Checkpointer(RunDir.at(folder), ranks, 1)
    saves, found = AsyncCheckpointer(checkpointer, ranks, torch.device("cpu")), []
    began = time.perf_counter()
    for step in range(1, SAVES + 1):
        computed(seconds)
        world.barrier()
        asked = time.perf_counter()
        if beside:
            saves.end()
            saves.start(step, shards_of(state), {"train": {"step": step}}, {})
        else:
            checkpointer.save(step, shards_of(state), {"train": {"step": step}}, {})
        found.append(time.perf_counter() - asked)
    saves.end()
    world.barrier()
    return [*found, time.perf_counter() - began]


def compared(world: World, base: Path, step: int, state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Wall seconds of a save and of a load, and of DCP's, which is first in every other step: what the disk
    still has to do is not always the other's.
    """
    ours, theirs = RunDir.at(base / "ours"), str(base / f"dcp-{step}")
    into = {name: torch.empty_like(t) for name, t in state.items()}
    saver, shards = Checkpointer(ours, world, None), shards_of(state)  # none is pruned in the time of a save

    def load() -> None:
        with CheckpointReader(ours.checkpoint(step), ranks=world) as reader:
            for name, tensor in into.items():
                tensor.copy_(reader.read("policy", name, "param"))
            reader.verify_reads()

    saves: dict[str, Callable[[], object]] = {
        "save": lambda: saver.save(step, shards, {"train": {"step": step}}, {}),
        "dcp_save": lambda: dcp.save(state, checkpoint_id=theirs),
    }
    loads: dict[str, Callable[[], object]] = {
        "load": load,
        "dcp_load": lambda: dcp.load(into, checkpoint_id=theirs),
    }
    found = {}
    for ways in (saves, loads):
        for what in sorted(ways, reverse=bool(step % 2)):
            for tensor in into.values():
                tensor.zero_()
            found[what] = together(world, ways[what])
            assert ways is saves or all(torch.equal(into[name], t) for name, t in state.items())
    world.barrier()
    if world.rank == 0:
        shutil.rmtree(theirs)
        shutil.rmtree(ours.checkpoint(step))
        os.sync()  # the removal is in nobody's time
    world.barrier()
    return found


def rank_main(options: argparse.Namespace, env: RankEnv) -> None:
    world = World.open(env, device="cpu")
    if world.world_size == 1:
        world.require_group()
    state, base = state_of(world.rank, options.mib), Path(options.folder)
    total = options.mib * world.world_size / 1024
    results: dict[str, object] = {}
    each = {
        way: waits(world, base / way, state, options.seconds, way == "beside") for way in ("plain", "beside")
    }
    medians = {way: statistics.median(found[1:SAVES]) for way, found in each.items()}
    results["blocked"] = {
        "synchronous_s": round(medians["plain"], 3),
        "beside_s": round(medians["beside"], 3),
        "ratio": round(medians["beside"] / medians["plain"], 3),
        "wall_synchronous_s": round(each["plain"][-1], 1),
        "wall_beside_s": round(each["beside"][-1], 1),
    }
    rounds = [compared(world, base, step, state) for step in range(1, options.rounds + 2)]
    times = {what: [each[what] for each in rounds] for what in rounds[0]}
    for what in ("save", "load"):
        ours_s, theirs_s = (statistics.median(times[k][1:]) for k in (what, f"dcp_{what}"))
        results[what] = {
            "paceline_gib_s": round(total / ours_s, 3),
            "dcp_gib_s": round(total / theirs_s, 3),
            "ratio": round(theirs_s / ours_s, 3),
        }
    if world.rank == 0:
        print(json.dumps(results, indent=1), flush=True)
    world.close(ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        size = options.nproc
        rank_main(
            options,
            RankEnv(
                rank=options.rank,
                local_rank=options.rank,
                world_size=size,
                local_world_size=size,
                master_addr="127.0.0.1",
                master_port=options.port,
            ),
        )
        return 0
    print(
        f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.mib} MiB a rank", flush=True
    )
    with socket.socket() as free, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        shared = ["--nproc", str(options.nproc), "--mib", str(options.mib), "--rounds", str(options.rounds)]
        shared += ["--seconds", str(options.seconds), "--folder", folder, "--port", str(port)]
        ranks = [
            subprocess.Popen([sys.executable, __file__, *shared, "--rank", str(rank)])
            for rank in range(options.nproc)
        ]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
