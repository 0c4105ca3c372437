"""Running one side of a benchmark once, and what is read from it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workload

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # works in a checkout that is not installed


@dataclass(frozen=True)
class Measured:
    """One run: real tokens/s of all ranks over whole optimizer steps (the first ``warm_up`` left out),
    worst rank's peak, launch to first step.
    """

    tokens_per_second: float
    peak_bytes: int
    first_step_seconds: float


def environment(**more: str) -> dict[str, str]:
    """One thread a process, no network, this checkout importable."""
    paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": paths,
        **more,
    }


def rate(steps: Sequence[Mapping[str, float]], warm_up: int) -> float:
    """Tokens over seconds of the steps after ``warm_up``."""
    kept = steps[warm_up:] or steps
    return sum(s["tokens"] for s in kept) / sum(s["seconds"] for s in kept)


def run(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> float:
    """Run to the end, output to ``log``; returns the wall-clock time of the launch. Exits with the log's
    end when it fails.
    """
    launched = time.time()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            list(argv),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            check=False,
            stdin=subprocess.DEVNULL,
        ).returncode
    if code:
        sys.exit(
            f"{' '.join(argv)}\nended with {code}; the end of {log}:\n"
            + "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        )
    return launched


def torchrun(python: str, nproc: int) -> list[str]:
    """The launch of a side's script, which follows with its arguments."""
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={nproc}"]


def ranks_of(out: Path, nproc: int, launched: float, warm_up: int = 1) -> Measured:
    """What the ranks of a side have written beside ``out``."""
    ranks = [json.loads(out.with_suffix(f".{r}.json").read_text()) for r in range(nproc)]
    steps_of_all = [
        {
            "tokens": sum(r["steps"][i]["tokens"] for r in ranks),
            "seconds": max(r["steps"][i]["seconds"] for r in ranks),
        }
        for i in range(len(ranks[0]["steps"]))
    ]
    return Measured(
        rate(steps_of_all, warm_up),
        max(r["peak_bytes"] for r in ranks),
        max(r["first_step_at"] for r in ranks) - launched,
    )


def trl(
    python: str,
    folder: Path,
    *,
    dtype: str,
    packing: str,
    rows: int,
    steps: int,
    nproc: int,
    warm_up: int,
    shape: tuple[int, int],
    model: str = "llama",
) -> Measured:
    """TRL once. ``shape`` is (micro-batch, accumulation)."""
    out = folder / "trl_result"
    argv = [*torchrun(python, nproc), str(ROOT / "dev" / "benchmarks" / "trl_side.py")]
    argv += [
        "--out",
        str(out),
        "--rows",
        str(rows),
        "--steps",
        str(steps),
        "--dtype",
        dtype,
        "--packing",
        packing,
        "--model",
        model,
    ]
    argv += ["--micro-batch", str(shape[0]), "--accumulation", str(shape[1])]
    launched = run(argv, folder / f"trl-{dtype}-{packing}.log", environment(PYTHONPATH=""))
    return ranks_of(out, nproc, launched, warm_up)


def paceline(
    folder: Path,
    *,
    dtype: str,
    packing: bool,
    steps: int,
    nproc: int,
    warm_up: int,
    shape: tuple[int, int],
    tag: str = "",
    model: str = "llama",
) -> Measured:
    """Paceline once, through ``paceline train``; numbers from the run's own events."""
    name = f"paceline-{dtype}-{'packed' if packing else 'padded'}{tag}"
    config = write_config(folder, name, dtype=dtype, packing=packing, steps=steps, shape=shape, model=model)
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(config), "--nproc", str(nproc)]
    launched = run(argv, folder / f"{name}.log", environment(PACELINE_CACHE=str(folder / "cache")))
    return read_run(folder / name, launched, nproc, warm_up)


def write_config(
    folder: Path,
    name: str,
    *,
    dtype: str,
    packing: bool,
    steps: int,
    shape: tuple[int, int],
    model: str = "llama",
) -> Path:
    """The YAML of one run (JSON is YAML)."""
    config: dict[str, Any] = {
        "model": {"config": workload.MODELS[model], "tokenizer": str(folder / "tokenizer")},
        "data": {
            "train": [{"path": str(folder / "rows.jsonl"), "format": "text"}],
            "max_length": workload.SEQ_LEN,
            "packing": packing,
            "train_on": "all",
        },
        "training": {
            "mixed_precision": "bf16" if dtype == "bfloat16" else "no",
            "per_device_train_batch_size": shape[0],
            "gradient_accumulation_steps": shape[1],
            "max_steps": steps,
            "learning_rate": 1e-4,
            "save_strategy": "no",
            "report_to": [],
            "logging_steps": 1,
            "use_cpu": True,
            "overwrite_output_dir": True,
            "output_dir": str(folder / name),
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return path


def read_run(run_dir: Path, launched: float, nproc: int, warm_up: int) -> Measured:
    """Speed, peak and start of a finished run."""
    from paceline.core.rundir import RunDir
    from paceline.runlog.events import Step, read_events

    ranks = [
        [r for r in read_events(RunDir.at(run_dir).events(k)) if isinstance(r.event, Step)]
        for k in range(nproc)
    ]
    steps = [r.event for r in ranks[0] if isinstance(r.event, Step)]
    peak = max(e.event.memory_bytes or 0 for records in ranks for e in records if isinstance(e.event, Step))
    return Measured(
        rate([{"tokens": s.tokens, "seconds": s.step_seconds} for s in steps], warm_up),
        peak,
        ranks[0][0].time - launched,
    )


def read_steps(run_dir: Path, launched: float, nproc: int, units: int, passes: int = 1) -> Measured:
    """The same of a run whose steps are preceded by rollouts: ``units`` (completions of a rollout) over the
    wall-clock time from the end of one rollout's steps (``passes`` of them) to the end of the next."""
    from paceline.core.rundir import RunDir
    from paceline.runlog.events import Step, read_events

    ranks = [
        [r for r in read_events(RunDir.at(run_dir).events(k)) if isinstance(r.event, Step)]
        for k in range(nproc)
    ]
    ends = [record.time for record in ranks[0]][passes - 1 :: passes]
    peak = max(e.event.memory_bytes or 0 for records in ranks for e in records if isinstance(e.event, Step))
    return Measured(units * (len(ends) - 1) / (ends[-1] - ends[0]), peak, ends[0] - launched)


def matmul_flops(dtype: str, repeat: int = 8) -> float:
    """FLOP/s of a 2048³ matrix product on one thread, measured now: the ceiling of one rank.

    A processor without instructions for ``dtype`` multiplies faster in float32, which is then the ceiling.
    """
    if dtype != "float32":
        return max(product_rate(dtype, repeat), product_rate("float32", repeat))
    return product_rate(dtype, repeat)


def product_rate(dtype: str, repeat: int) -> float:
    """FLOP/s of the product in exactly ``dtype``."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(2048, 2048).to(getattr(torch, dtype))
    a @ a
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / statistics.median(seconds)


def mfu(tokens_per_second: float, flops: float, nproc: int) -> float:
    """6 × matrix parameters × tokens/s over the ranks' measured ceilings."""
    return 6 * workload.MATMUL_PARAMETERS * tokens_per_second / (flops * nproc)


def median(values: Sequence[float]) -> float:
    """Median."""
    return statistics.median(values)
