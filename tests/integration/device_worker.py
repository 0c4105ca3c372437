"""One rank of a whole run on the CPU or on an emulated device: ``python device_worker.py CASE.json``.

The case has the run's config, where it runs (``cpu``, ``cuda``, ``npu``, …), the card and its capability.
The device's backend is gloo on the numbers inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor
import torch.utils.tensorboard  # noqa: F401
import transformers.optimization  # noqa: F401
import transformers.trainer_utils  # noqa: F401
from device_steps import products_round
from emulated_device import emulated

import paceline.training.run.build
import paceline.training.worker  # noqa: F401
from paceline.config.load import load_config
from paceline.launch.environment.guide_variables import current
from paceline.launch.supervision.worker_channel import LauncherConnection
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.hardware.device_kinds import CPU, CUDA, KINDS, is_accelerator
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import World
from paceline.runtime.time_limit import exit_now
from paceline.strategies.deepspeed import fill_partitions
from paceline.training.loop.throughput import PeakFlops
from paceline.training.rank import run_rank

PACKAGES = {"deepspeed": "0.19.8", "peft": "0.19", "bitsandbytes": "0.49"}


def write_plan(case: dict[str, Any], rank: int, world_size: int) -> Path:
    """The plan for the case's cards, in a file of this rank's own."""
    folder = Path(case["folder"])
    config_file = folder / f"config.{rank}.json"
    config_file.write_text(json.dumps(case["config"]))
    loaded = load_config(config_file, case.get("set", []), {})
    hardware = replace(
        cluster_of(f"{world_size}x{case['card']}").hardware(),
        capability=float("{}.{}".format(*case["capability"])),
        packages=PACKAGES,
        host_memory_bytes=64 << 30,
    )
    kind = KINDS[case["where"]]
    if is_accelerator(kind.name) and kind is not CUDA:
        backends = (kind.backend or CPU.backend, CPU.backend)
        hardware = replace(
            hardware, device=kind.name, device_name=kind.label, capability=None, torch_backends=backends
        )
    run_dir = loaded.config.training.output_dir
    plan = make_plan(
        Job(loaded.config, hardware, world_size=world_size, launcher="torchrun", run_dir=str(run_dir))
    )
    if case["where"] == "cpu":
        plan = replace(plan, device="cpu", backend="gloo")
    path = folder / f"plan.{rank}.json"
    path.write_text(json.dumps(plan.to_json()))
    return path


def opened(name: str, **options: Any) -> Any:
    """``init_process_group``: gloo moves the numbers."""
    options.pop("device_id", None)
    return REAL_INIT(CPU.backend, **options)


REAL_INIT = dist.init_process_group


def partly(device: torch.device) -> Callable[[torch.Size, torch.dtype], torch.Tensor]:
    """Room for a parameter on the device: the emulated one's cannot become the host's in place."""
    return lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device)


def main() -> None:
    warnings.filterwarnings("ignore")
    case = json.loads(Path(sys.argv[1]).read_text())
    rank, world_size = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
    )
    plan = write_plan(case, rank, world_size)
    environ = current()
    nothing = dict.fromkeys(("range_push", "range_pop", "mark"), lambda *_, **__: None)
    with contextlib.ExitStack() as stack:
        if case["where"] == "cpu":
            stack.enter_context(products_round())
        else:
            stack.enter_context(mock.patch.object(dist, "init_process_group", opened))
            stack.enter_context(mock.patch.multiple(torch.cuda.nvtx, **nothing))
            peak = staticmethod(lambda *_: PeakFlops(1e15, True))
            stack.enter_context(mock.patch.object(PeakFlops, "of", peak))
            machine = stack.enter_context(
                emulated(tuple(case["capability"]), case["where"], world_size, rank)
            )
            stack.enter_context(mock.patch.object(fill_partitions, "_on_host", partly(machine.device)))
            close = World.close

            def closed(world: World, ok: bool) -> bool:
                """A rank of several ends without returning: what was seen is written before."""
                seen = {"waits": dict(machine.waits), "peak": machine.peak}
                (Path(case["folder"]) / f"seen.{rank}.json").write_text(json.dumps(seen))
                return close(world, ok)

            stack.enter_context(mock.patch.object(World, "close", closed))
        line = LauncherConnection.join(environ, rank, lambda word: os._exit(3))
        code = run_rank(["--plan", str(plan)], environ, line)
    sys.stdout.flush()
    exit_now(code)


if __name__ == "__main__":
    main()
