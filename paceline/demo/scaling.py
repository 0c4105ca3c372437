"""``paceline bench scaling``: the guide's scaling tables, measured on this machine with ``paceline train``.

For 1, 2, … processes with the same micro-batch per process (weak scaling, as in the guide), and for one
process against DDP on two model sizes. Definitions:  speed-up = tokens/s of n processes / tokens/s of one;
efficiency = speed-up / n; throughput = device speed × device count × efficiency. Does not import torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
from paceline.demo import codes
from paceline.demo.files import vocabulary, write_questions, write_tokenizer
from paceline.demo.questions import training
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program, terminal
from paceline.plan.hardware.probe import cpu_count
from paceline.runlog.events import Step, read_events

SIZES = {"small": (128, 2), "medium": (256, 4), "large": (512, 8)}  # hidden size, layers
ROW_TOKENS = 256  # of every row that is measured
WARM_UP = 2  # first steps, not measured


@dataclass(frozen=True)
class Cell:
    """One measured run: ``memory_bytes``: maximum peak over processes.

    ``tokens_per_second``: of all processes.
    """

    size: str
    processes: int
    strategy: str
    batch: int
    tokens_per_second: float
    memory_bytes: int


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    options = argument_parser().parse_args(None if argv is None else list(argv))
    try:
        processes = sorted(set(options.processes or default_processes()))
        if options.steps < 1 or options.micro_batch < 1 or processes[0] < 1:
            raise ConfigError(codes.BENCH_OPTIONS())
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
            cells = measure(Path(folder), options, processes)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    if options.json:
        print(json.dumps([vars(c) for c in cells], indent=1))
    else:
        show(Console(file=terminal(sys.stdout)), cells, options.compare)
    return int(ExitCode.OK)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline bench scaling",
        description="Throughput, memory and efficiency on 1, 2, … processes, as measured here.",
    )
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        action="extend",
        metavar="N",
        help="process counts (default: 1, 2, 4, … up to the cores or GPUs of this machine)",
    )
    parser.add_argument("--size", choices=list(SIZES), default="medium", help="model of the scaling table")
    parser.add_argument(
        "--compare",
        choices=list(SIZES),
        nargs="*",
        default=["small", "medium"],
        help="models of the table single process against DDP",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=8,
        help=f"optimizer steps counted in each run, after {WARM_UP} that are not counted",
    )
    parser.add_argument(
        "--micro-batch", type=int, default=8, help=f"rows of {ROW_TOKENS} tokens per process and step"
    )
    parser.add_argument("--json", action="store_true", help="the measurements as JSON")
    return parser


def default_processes() -> list[int]:
    """Return 1, 2, 4, … up to the number of GPUs, or of usable cores without GPUs; at most 8."""
    from paceline.launch.environment.guide_variables import current
    from paceline.plan.hardware.device_kinds import is_accelerator
    from paceline.plan.hardware.probe import probe_hardware

    hardware = probe_hardware(current())
    most = min(8, hardware.num_devices if is_accelerator(hardware.device) else len(os.sched_getaffinity(0)))
    return [n for n in (1, 2, 4, 8) if n <= max(2, most)]


def measure(folder: Path, options: argparse.Namespace, processes: Sequence[int]) -> list[Cell]:
    """Run each configuration that the tables need once, in turn."""
    write_tokenizer(folder / "tokenizer")
    write_questions(folder / "train.jsonl", training(0, 8000, set()))
    largest = processes[-1]
    wanted = [(options.size, n) for n in processes] + [
        (size, n) for size in options.compare for n in (1, largest)
    ]
    cells = []
    for size, count in dict.fromkeys(wanted):
        print(
            f"measuring: {size} model, {count} process{'es' if count > 1 else ''} …",
            file=sys.stderr,
            flush=True,
        )
        cells.append(run_cell(folder, size, count, options, largest))
    return sorted(cells, key=lambda cell: (cell.size != options.size, cell.size, cell.processes))


def run_cell(folder: Path, size: str, processes: int, options: argparse.Namespace, largest: int) -> Cell:
    """Train a few steps and read the speed from the run's events.

    Every process has as many threads as in the ``largest`` run, so that one "device" is the same in all rows.
    Raises PacelineError with the training's output if it fails.
    """
    run = RunDir.at(folder / f"{size}-{processes}")
    config = folder / f"{size}-{processes}.yaml"
    strategy = "single" if processes == 1 else "ddp"
    config.write_text(json.dumps(run_config(folder, run, size, strategy, options)), encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(config), "--nproc", str(processes)]
    environ = {"OMP_NUM_THREADS": str(max(1, cpu_count() // largest)), **current()}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environ
    )
    if done.returncode:
        end = "\n      ".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PacelineError(
            codes.BENCH_RUN_FAILED(found=end, size=size, processes=processes, returncode=done.returncode)
        )
    steps = [r.event for r in read_events(run.events(0)) if isinstance(r.event, Step)][WARM_UP:]
    memory = [
        r.event.memory_bytes or 0
        for k in range(processes)
        for r in read_events(run.events(k))
        if isinstance(r.event, Step)
    ]
    return Cell(
        size,
        processes,
        strategy,
        options.micro_batch * processes,
        statistics.median(s.tokens_per_second for s in steps),
        max(memory, default=0),
    )


def run_config(
    folder: Path, run: RunDir, size: str, strategy: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the YAML of one run, as data (JSON is YAML)."""
    hidden, layers = SIZES[size]
    model = {
        "model_type": "llama",
        "vocab_size": len(vocabulary()),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "max_position_embeddings": ROW_TOKENS,
    }
    return {
        "model": {"config": model, "tokenizer": str(folder / "tokenizer")},
        "data": {
            "train": [{"path": str(folder / "train.jsonl"), "format": "messages"}],
            "max_length": ROW_TOKENS,
            "cache_dir": str(folder / "cache"),
        },
        "training": {
            "distributed_strategy": strategy,
            "per_device_train_batch_size": options.micro_batch,
            "max_steps": WARM_UP + options.steps,
            "num_train_epochs": 1000,
            "save_strategy": "no",
            "report_to": [],
            "output_dir": str(run.root),
        },
    }


def show(console: Console, cells: Sequence[Cell], compare: Sequence[str]) -> None:
    """Print the scaling table, the throughput equation, and one process against DDP."""
    by_size = {size: [c for c in cells if c.size == size] for size in dict.fromkeys(c.size for c in cells)}
    main_size = next(iter(by_size))
    console.print(scaling_table(by_size[main_size], main_size))
    for cell in by_size[main_size]:
        alone = by_size[main_size][0].tokens_per_second
        ratio = efficiency(cell, by_size[main_size])
        console.print(
            f"throughput on {cell.processes}: {alone:,.0f} tokens/s per device × {cell.processes} ×"
            f" {ratio:.2f} = {cell.tokens_per_second:,.0f} tokens/s",
            highlight=False,
        )
    if compare:
        console.print(compare_table(by_size, compare))
    console.print(
        "Processes on one machine share its memory bandwidth; DDP keeps the complete model in every"
        " process, so memory does not decrease.",
        highlight=False,
    )


def efficiency(cell: Cell, cells: Sequence[Cell]) -> float:
    """Return the speed-up over the fewest processes measured, divided by the ratio of counts.

    1.0 is perfect scaling.
    """
    base = cells[0]
    return cell.tokens_per_second / base.tokens_per_second * base.processes / cell.processes


def scaling_table(cells: Sequence[Cell], size: str) -> Table:
    """Return the guide's table: processes, batch, speed, memory per process, efficiency."""
    table = Table(title=f"Scaling, {size} model", title_justify="left")
    for column in ("processes", "batch", "speed", "tokens/s", "memory per process", "efficiency"):
        table.add_column(column, justify="right")
    base = cells[0]
    for c in cells:
        speed = f"{100 * c.tokens_per_second / base.tokens_per_second:.0f}%"
        memory = f"{human_bytes(c.memory_bytes)} ({100 * c.memory_bytes / max(1, base.memory_bytes):.0f}%)"
        table.add_row(
            str(c.processes),
            str(c.batch),
            speed,
            f"{c.tokens_per_second:,.0f}",
            memory,
            f"{100 * efficiency(c, cells):.0f}%",
        )
    return table


def compare_table(by_size: dict[str, list[Cell]], sizes: Sequence[str]) -> Table:
    """Return one process against DDP by model size: time per million tokens, and memory."""
    table = Table(title="One process against DDP", title_justify="left")
    for column in ("model", "strategy", "processes", "s per million tokens", "memory per process"):
        table.add_column(column, justify="left" if column in ("model", "strategy") else "right")
    for size in sizes:
        for c in by_size.get(size, []):
            table.add_row(
                size,
                c.strategy,
                str(c.processes),
                f"{1e6 / c.tokens_per_second:.1f}",
                human_bytes(c.memory_bytes),
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
