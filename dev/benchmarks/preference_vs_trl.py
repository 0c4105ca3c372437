"""Paceline against TRL's RewardTrainer and DPOTrainer, side by side: same model, pairs and processes; runs
alternate; ratios of medians.

  python dev/benchmarks/preference_vs_trl.py --trl-python /path/to/trlvenv/bin/python [--rounds 3] [--steps 5]
    [--quick]

Prints a table and writes ``result.json`` into ``--to``. ``dpo-cached``: the reference is asked before
training on both sides; ``dpo-live``: in every step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import workload
from measure import ROOT, Measured, environment, median, ranks_of, read_run, run, torchrun

ROWS = 600
GOALS = {
    ("reward", "float32"): 1.25,
    ("reward", "bfloat16"): 1.4,
    ("dpo-cached", "float32"): 2.5,
    ("dpo-cached", "bfloat16"): 2.5,
    ("dpo-live", "float32"): 1.8,
    ("dpo-live", "bfloat16"): 1.8,
}
MEMORY_GOALS = {"reward": 1.0, "dpo-cached": 0.5, "dpo-live": 0.5}


def main() -> None:
    """All cells, alternated."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--trl-python", required=True, help="the interpreter of an environment with trl==1.16.0"
    )
    parser.add_argument("--to", type=Path, default=Path("outputs/benchmark-preference"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps a run, the first not counted")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=2, help="pairs")
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--cells", nargs="*", default=[f"{what}:{dtype}" for what, dtype in GOALS])
    parser.add_argument("--quick", action="store_true", help="one round of two steps: does it run at all")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 2
    folder = options.to.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    workload.write_tokenizer(folder / "tokenizer")
    pairs = workload.pairs(ROWS)
    workload.write_rows(folder / "pairs.jsonl", pairs)
    few = options.steps * options.micro_batch * options.accumulation * options.nproc
    # where a reference is asked before: what a run of these steps takes
    workload.write_rows(folder / "pairs-few.jsonl", pairs[:few])
    for count in (ROWS, few):
        workload.write_rows(folder / f"turns-{count}.jsonl", [workload.turns(row) for row in pairs[:count]])
    report = []
    for cell in options.cells:
        what, dtype = cell.split(":")
        ours, theirs = [], []
        for _ in range(options.rounds):
            theirs.append(trl(folder, what, dtype, options))
            ours.append(paceline(folder, what, dtype, options))
        report.append(summary(what, dtype, ours, theirs))
        print(json.dumps(report[-1]["ratios"] | {"cell": cell}), flush=True)
        (folder / "result.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def summary(what: str, dtype: str, ours: list[Measured], theirs: list[Measured]) -> dict[str, Any]:
    """Medians and their ratios."""
    speed = median([m.tokens_per_second for m in ours]), median([m.tokens_per_second for m in theirs])
    memory = median([m.peak_bytes for m in ours]), median([m.peak_bytes for m in theirs])
    return {
        "cell": what,
        "dtype": dtype,
        "ratios": {
            "tokens_per_second": [round(v) for v in speed],
            "speed": round(speed[0] / speed[1], 2),
            "speed_goal": GOALS.get((what, dtype)),
            "peak_gb": [round(v / 1e9, 2) for v in memory],
            "memory": round(memory[0] / memory[1], 2),
            "memory_goal": MEMORY_GOALS[what],
        },
        "runs": {"paceline": [vars(m) for m in ours], "trl": [vars(m) for m in theirs]},
    }


def trl(folder: Path, what: str, dtype: str, options: argparse.Namespace) -> Measured:
    """TRL once."""
    algorithm, _, reference = what.partition("-")
    out = folder / "trl_result"
    arguments = [
        "--out",
        str(out),
        "--algorithm",
        algorithm,
        "--rows",
        str(ROWS),
        "--steps",
        str(options.steps),
    ]
    arguments += [
        "--dtype",
        dtype,
        "--micro-batch",
        str(options.micro_batch),
        "--accumulation",
        str(options.accumulation),
    ]
    arguments += ["--cached"] if reference == "cached" else []
    argv = [
        *torchrun(options.trl_python, options.nproc),
        str(ROOT / "dev" / "benchmarks" / "trl_preference_side.py"),
        *arguments,
    ]
    launched = run(argv, folder / f"trl-{what}-{dtype}.log", environment(PYTHONPATH=""))
    return ranks_of(out, options.nproc, launched)


def paceline(folder: Path, what: str, dtype: str, options: argparse.Namespace) -> Measured:
    """Paceline once, through ``paceline train``; numbers from the run's own events."""
    algorithm, _, reference = what.partition("-")
    name = f"paceline-{what}-{dtype}"
    config: dict[str, Any] = {
        "model": {"config": workload.LLAMA_56M, "tokenizer": str(folder / "tokenizer")},
        "data": {
            "train": str(folder / ("pairs-few.jsonl" if reference == "cached" else "pairs.jsonl")),
            "max_length": workload.SEQ_LEN,
        },
        "training": {
            "algorithm": algorithm,
            "mixed_precision": "bf16" if dtype == "bfloat16" else "no",
            "max_steps": options.steps,
            "per_device_train_batch_size": options.micro_batch,
            "gradient_accumulation_steps": options.accumulation,
            "learning_rate": 1e-4,
            "save_strategy": "no",
            "report_to": [],
            "logging_steps": 1,
            "use_cpu": True,
            "overwrite_output_dir": True,
            "output_dir": str(folder / name),
        },
    }
    if algorithm == "dpo":
        config["training"]["dpo"] = {"precompute_ref_log_probs": reference == "cached"}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.cli.main", "train", str(path), "--nproc", str(options.nproc)]
    launched = run(argv, folder / f"{name}.log", environment(PACELINE_CACHE=str(folder / "cache")))
    return read_run(folder / name, launched, options.nproc, 1)


if __name__ == "__main__":
    main()
