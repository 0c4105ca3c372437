"""Host memory of a start beside the plan's, of a model that is larger than what one process may hold.

    python dev/benchmarks/start_memory.py [--cases fsdp,zero3] [--gib 4.2] [--folder /tmp]
        [--config '{"model_type": "glm4"}']

A Llama of ``--gib`` (fp32), or the family of ``--config``, lies in a folder; each case builds the models of
a job from it as a run's start does, in as many processes as it says, and ends before the first step. Counted
is what the processes hold themselves (RssAnon and RssShmem of /proc, summed over them at the same moment,
every 10 ms), against the plan's ``start_host``, and what one process held above what it keeps. Allowed: the
plan ± 5 % + 200 MiB, and 1 GiB above. ``read``: what all processes together read from the disk, of the
folder's size; its pages are dropped from the page cache before. Ends with 1 where a case is outside.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from large_models import (
    GIB,
    LLAMA,
    MIB,
    Source,
    layers_for,
    memory_of,
    write_folder,
    write_fp8_folder,
)

from paceline.algorithms.algorithm import algorithm_class
from paceline.config.schema import Config
from paceline.models.factory import HFModelFactory
from paceline.plan.cost.memory.fits import room_of
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.model.read_config import shape_of
from paceline.plan.strategies.spec import Job
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.rules.planning import make_plan
from paceline.runtime.device.host import configure_malloc, return_freed_memory
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.registry import make_strategy

HALF, WHOLE = 0.5, 0.3  # where several processes hold the same weights, and in the end their moments


@dataclass(frozen=True)
class Case:
    """A strategy on ``nproc`` processes, and what else the config says; ``part``: of the model's size;
    ``fp8``: its projections are stored so.
    """

    nproc: int
    training: Mapping[str, Any]
    sections: Mapping[str, Any] = field(default_factory=dict)
    part: float = 1.0
    fp8: bool = False


def _mesh(nproc: int, part: float = 1.0, strategy: str = "fsdp", **sizes: int) -> Case:
    return Case(nproc, {"distributed_strategy": strategy, "parallelism": sizes}, part=part)


def _zero(stage: int, **config: Any) -> Case:
    zero = {"zero_optimization": {"stage": stage}, **config}
    return Case(4, {"distributed_strategy": "deepspeed", "deepspeed": zero})


FSDP = {"distributed_strategy": "fsdp"}
QLORA = {"lora": {"r": 8, "quantization_bit": 4}}
CASES = {
    "single": Case(1, {"distributed_strategy": "single"}, part=WHOLE),
    "ddp": Case(2, {"distributed_strategy": "ddp"}, part=WHOLE),
    "fsdp": Case(4, FSDP),
    "hsdp": _mesh(4, HALF, dp_replicate_size=2, dp_shard_size=2),
    "tp": _mesh(4, tp_size=4),
    "tp_fsdp": _mesh(4, tp_size=2, dp_shard_size=2),
    "pp": _mesh(4, strategy="pipeline", pp_size=4),
    "pp_fsdp": _mesh(4, strategy="pipeline", pp_size=2, dp_shard_size=2),
    "zero1": replace(_zero(1), nproc=2, part=WHOLE),
    "zero2": replace(_zero(2), nproc=2, part=WHOLE),
    "zero3": replace(_zero(3), part=HALF),
    "autotp": replace(_zero(1, tensor_parallel={"autotp_size": 4}), part=HALF),
    "lora": Case(2, {"distributed_strategy": "ddp"}, {"lora": {"r": 8}}),
    "fp8_fsdp": Case(4, FSDP, fp8=True),
    "fp8_qlora_fsdp": Case(4, FSDP, QLORA, fp8=True),
    "lora_fsdp": Case(4, FSDP, {"lora": {"r": 8}}),
    "qlora": Case(2, {"distributed_strategy": "ddp"}, QLORA),
    "qlora_fsdp": Case(4, FSDP, QLORA),
    "dpo_fsdp": Case(4, {**FSDP, "algorithm": "dpo", "dpo": {"precompute_ref_log_probs": False}}, part=HALF),
    "dpo_zero3": Case(
        4, {**_zero(3).training, "algorithm": "dpo", "dpo": {"precompute_ref_log_probs": False}}, part=HALF
    ),
}


def plan_of(case: Case, model: Path) -> tuple[Config, Any, Any]:
    """Return the config of a case, its plan and what that says of the start."""
    config = Config.from_json(
        {
            "model": {"name_or_path": str(model), "tokenizer": "none"},
            "data": {"train": [{"path": "none"}], "max_length": 256},
            "training": {"use_cpu": True, "mixed_precision": "no", **case.training},
            **case.sections,
        }
    )
    hardware = probe_hardware({}, use_cpu=True, num_nodes=1)
    job = Job(
        config, hardware, shape=shape_of(config.model, exactly=True), world_size=case.nproc, run_dir="none"
    )
    plan = make_plan(replace(job, launcher="torchrun" if case.nproc > 1 else "single"))
    return config, plan, room_of(plan, hardware)


def note(file: Path) -> None:
    """Write what this process holds itself and has read from the disk."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    file.write_text(json.dumps([memory_of("self")[0], int(dict(lines)["read_bytes"])]))


def forget(folder: Path) -> None:
    """Drop the pages of the files of ``folder`` from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rank_main(case: Case, model: Path, out: Path) -> None:
    """Build the models as a run's start does, and wait until the parent has seen it."""
    torch.set_num_threads(1)
    config, plan, _ = plan_of(case, model)
    env = RankEnv.from_environ(environment())
    world = World.open(env, device="cpu", timeout_seconds=600)
    return_freed_memory()
    strategy, algorithm = make_strategy(plan.strategy, world, plan), algorithm_class(plan.algorithm)()
    note(out / f"{world.rank}.before")
    world.barrier()
    held = []
    for role in (*algorithm.trains, *(Role(name) for name, m in plan.models.items() if not m.trained)):
        frozen = role not in algorithm.trains
        factory = HFModelFactory(
            config.model,
            role,
            compute_dtype=getattr(torch, plan.precision.compute),
            attention=plan.attention,
            device=world.device,
            adapter=plan.adapter,
            frozen=frozen,
        )
        held.append(strategy.prepare(role, factory, None if frozen else plan.optimizer))
    configure_malloc()
    note(out / f"{world.rank}.after")
    world.barrier()
    time.sleep(0.2)
    os._exit(0)  # engines print and wait at their end


def start(case: str, nproc: int, model: Path, out: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, __file__, "--rank-of", case, "--model", str(model), "--out", str(out)]
    processes = []
    for rank in range(nproc):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc}
        values = {
            **{k: str(v) for k, v in places.items()},
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        more = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": ROOT}
        log = (out / f"{rank}.log").open("wb")
        processes.append(
            subprocess.Popen(argv, env={**os.environ, **values, **more}, stdout=log, stderr=subprocess.STDOUT)
        )
    return processes


ROOT = str(Path(__file__).resolve().parents[2])


def peaks(processes: list[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """Wait for them; return the most bytes that one held, and that all held at one moment."""
    one = together = 0
    while any(process.poll() is None for process in processes):
        sizes = []
        for process in processes:
            try:
                sizes.append(memory_of(process.pid)[0])
            except OSError:
                sizes.append(0)
        one, together = max(one, *sizes), max(together, sum(sizes))
        if any(process.poll() not in (None, 0) for process in processes):
            for process in processes:
                process.kill()
        time.sleep(0.01)
    return one, together


def measure(name: str, model: Path, folder: Path) -> bool:
    """Measure one case; return whether it stayed within what is allowed."""
    case = CASES[name]
    _, _, room = plan_of(case, model)
    out = Path(tempfile.mkdtemp(prefix="paceline-start-", dir=folder))
    began = time.perf_counter()
    forget(model)
    try:
        processes = start(name, case.nproc, model, out)
        one, together = peaks(processes)
        if any(process.returncode for process in processes):
            print((out / "0.log").read_text()[-3000:])
            raise SystemExit(f"{name} ended with {[process.returncode for process in processes]}")
        before, after = (
            [json.loads((out / f"{rank}.{when}").read_text()) for rank in range(case.nproc)]
            for when in ("before", "after")
        )
    finally:
        shutil.rmtree(out)
    apart, above = together - room.start_host, one - max(own for own, _ in after)
    size = sum(path.stat().st_size for path in model.iterdir())
    read = sum(now - was for (_, was), (_, now) in zip(before, after, strict=True)) / size
    row = [
        f"{name:10}",
        f"{case.nproc}",
        f"{room.start_host / MIB:.0f}",
        f"{together / MIB:.0f}",
        f"{apart / MIB:+.0f} ({together / room.start_host:.3f})",
        f"{sum(own for own, _ in before) / case.nproc / MIB:.0f}",
        f"{max(own for own, _ in after) / MIB:.0f}",
        f"{above / MIB:.0f}",
        f"{read:.3f}",
        f"{time.perf_counter() - began:.0f} s",
    ]
    print(" | ".join(row), flush=True)
    return abs(apart) <= 0.05 * room.start_host + 200 * MIB and above <= GIB


def write_model(folder: Path, gib: float, fp8: bool = False, values: Mapping[str, Any] | None = None) -> Path:
    config = layers_for({**LLAMA, **(values or {})}, gib)
    plain = HFModelFactory(Source(config=config))
    skeleton = plain(BuildOptions(device=torch.device("meta"))).hf
    saved = {**plain.saved_config, "dtype": "float32"}
    if fp8:
        write_fp8_folder(folder, skeleton, saved)
    else:
        write_folder(folder, skeleton, saved, torch.float32)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--gib", type=float, default=4.2, help="of fp32 weights")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--config", type=json.loads, help="values of model.config, as JSON")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        rank_main(CASES[args.rank_of], args.model, args.out)
    scratch = Path(tempfile.mkdtemp(prefix="paceline-start-", dir=args.folder))
    try:
        cases = args.cases.split(",")
        print("in MiB:\ncase | ranks | planned | measured | apart | before | after | above | read | time")
        within = []
        for part, fp8 in sorted({(CASES[name].part, CASES[name].fp8) for name in cases}):
            model = write_model(scratch / "model", args.gib * part, fp8, args.config)
            alike = [n for n in cases if (CASES[n].part, CASES[n].fp8) == (part, fp8)]
            within += [measure(name, model, scratch) for name in alike]
            shutil.rmtree(model)
    finally:
        shutil.rmtree(scratch)
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
